"""A table of set-ups answered: for every row a prediction with an 80 % interval.

Where a row names a reference (`ref_gpu`, `ref_throughput`: the same set-up measured on another GPU), the prediction is
moved by a part of how far the model is off there:

    log value = log model(GPU) + w · (log reference - log model(reference GPU))

w is near 1 for a network nobody measured and smaller for known ones, whose errors are those of the other GPU as much as
the network's. One GPU measured stands for several of its kind: then only what is left of n times one is predicted.

The interval is that of the case a row is in: its GPU known or new, its network likewise, one GPU or several (expected
to scale well or not), with a reference or without. Cases of which too little was seen fall back on a wider one.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stallwise.analysis._layout_tables import LAYOUT_FORMATS
from stallwise.analysis.layouts import LayoutForecast, forecast_layout_rows
from stallwise.analysis.tables import (
    FORMATS,
    TableFormat,
    TableRow,
    cluster_job_setup,
    counted,
    fleet_of,
    gpu_of,
    image_setup,
    llm_setup,
    network_setup,
    read_table,
    scaling_setup,
    version_of,
)
from stallwise.errors import InputError, nearest_names
from stallwise.hardware.catalog import Catalog, load_catalog
from stallwise.hardware.coefficients import FittedCoefficients, known_names, load_fitted
from stallwise.hardware.gpu import Gpu
from stallwise.hardware.processors import cpu_class
from stallwise.model.compute import cluster_job, image, known_jobs, llm
from stallwise.model.compute.image import ImageSetup
from stallwise.model.statistics.conformal import ErrorSpread, joined
from stallwise.sentences import Sentence
from stallwise.workload.shapes import TOTALS

_MS = 1000.0
_FP32_BYTES = 4.0
_SEVERAL = ("network", "gavel")
"""Kinds of tables with a number of GPUs."""
_CLEARLY = math.log(1.5)
_UNLIKE = ErrorSpread(-0.15, 0.15)  # for each thing that was not measured: as far as precisions differ on one GPU
_NO_CLASS = 4  # as many things: classes of servers lie a factor of two apart
_FAR = math.log(3.0)  # a reference this far from the model is in another unit, or wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class RowForecast:
    """A value with its interval, in the unit of the table's own column."""

    predicted: float
    low: float
    high: float
    memory_bytes: float | None = None
    """Peak of the fullest GPU, in tables of parallel layouts."""
    fits: bool | None = None


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Why a row has no prediction: a sentence that begins with the row's number."""

    reason: Sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelForecast:
    """The model's own answer: logarithm of the value, and how well such rows are known."""

    log_value: float
    cases: tuple[str, ...]
    """Keys of spreads, the closest first."""
    unlike: int = 0
    """How many things of the row no measurement of the table had: its precision, compiling, kinds of kernels …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableForecast:
    """Every row of a table, with its prediction or the reason why there is none."""

    format: TableFormat
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    forecasts: tuple[RowForecast | Unanswered, ...]

    @property
    def answered(self) -> int:
        """Number of rows that have a prediction."""
        return sum(isinstance(one, RowForecast) for one in self.forecasts)


def forecast_table(path: Path, catalog: Catalog | None = None) -> TableForecast:
    """Read, recognise, answer what can be answered; an `InputError` with the first row's reason where no row can."""
    table_format, columns, rows = read_table(path, (*LAYOUT_FORMATS, *FORMATS))
    catalog = catalog or load_catalog()
    answers = _answers(table_format, rows, catalog)
    errors = [one for one in answers if isinstance(one, InputError)]
    if errors and len(errors) == len(answers):
        raise errors[0]
    forecasts = [
        Unanswered(Sentence("row.unanswered", str(one))) if isinstance(one, InputError) else one for one in answers
    ]
    return TableForecast(format=table_format, columns=tuple(columns), rows=tuple(rows), forecasts=tuple(forecasts))


def _answers(
    table_format: TableFormat, rows: Sequence[TableRow], catalog: Catalog
) -> Sequence[RowForecast | InputError]:
    if table_format in LAYOUT_FORMATS:
        return [_layout(one) for one in forecast_layout_rows(table_format, rows, catalog)]
    answers: list[RowForecast | InputError] = []
    for row in rows:
        try:
            answers += forecast_rows(table_format, [row], catalog)
        except InputError as error:
            answers.append(error)
    return answers


def _layout(one: LayoutForecast | InputError) -> RowForecast | InputError:
    if isinstance(one, InputError):
        return one
    return RowForecast(
        predicted=one.predicted, low=one.low, high=one.high, memory_bytes=one.memory_bytes, fits=one.fits
    )


def forecast_rows(table_format: TableFormat, rows: Sequence[TableRow], catalog: Catalog) -> list[RowForecast]:
    """One forecast per row; an `InputError` names the first that cannot be answered."""
    fitted = load_fitted(table_format.name)
    model = _MODELS[table_format.name]
    return [_forecast(row, catalog, fitted, model, table_format.name) for row in rows]


Model = Callable[[TableRow, Gpu, FittedCoefficients, float | None], ModelForecast]
"""The last argument is the logarithm of one GPU's own speed, where it was measured."""


def _forecast(row: TableRow, catalog: Catalog, fitted: FittedCoefficients, model: Model, kind: str) -> RowForecast:
    row = counted(row, catalog, takes_several=kind in _SEVERAL)
    gpu = gpu_of(row, catalog)
    reference = row.number_of("ref_throughput") if row.text("ref_gpu") else None
    if reference is None:
        direct = model(row, gpu, fitted, None)
        value, cases = direct.log_value, direct.cases
        if "alone" in cases:
            raise _unknown(row, known_names(fitted, "network"))
    else:
        value, cases = _from_reference(row, catalog, gpu, fitted, model, kind, reference)
    spread = ErrorSpread(*next(fitted.spreads[case] for case in (*cases, "") if case in fitted.spreads))
    if reference is None and direct.unlike:
        spread = joined(spread, *[_UNLIKE] * direct.unlike)
    predicted = math.exp(value)
    low, high = spread.around(predicted)
    return RowForecast(predicted=predicted, low=low, high=high)


def _unknown(row: TableRow, networks: Collection[str]) -> InputError:
    """A job nobody measured, without a measurement of the user's own."""
    near = nearest_names(row.name("model"), networks)
    hint = f"Did you mean {' or '.join(near)}? " if near else f"Known are {', '.join(sorted(networks))}. "
    return row.error(
        f"nothing is known of a job called {row.name('model')!r}. {hint}Else give ref_gpu and ref_throughput."
    )


def _from_reference(
    row: TableRow, catalog: Catalog, gpu: Gpu, fitted: FittedCoefficients, model: Model, kind: str, reference: float
) -> tuple[float, tuple[str, ...]]:
    """The logarithm of the value, and the cases it may be in."""
    ref_gpu, count = fleet_of(row, catalog, "ref_gpu")
    theirs = [model(_of(row, gpus), ref_gpu, fitted, None) for gpus in _gpus_meant(row, gpu, ref_gpu, count, kind)]
    off = [abs(_measured(row, kind, reference, forecast.log_value) - forecast.log_value) for forecast in theirs]
    # A job nobody measured has a unit of its own.
    at_reference = theirs[0] if "alone" in theirs[0].cases or off[0] < off[-1] + _CLEARLY else theirs[-1]
    measured = _measured(row, kind, reference, at_reference.log_value)
    if "alone" not in at_reference.cases and abs(measured - at_reference.log_value) > 4 * _FAR:
        raise row.error(
            f"ref_throughput {reference:g} is {math.exp(abs(measured - at_reference.log_value)):.0f} times off "
            "what its GPU could do. Check its unit."
        )
    one_of_several = gpu.name == ref_gpu.name and count in (None, 1) and row.count("n_gpus", 1) > 1
    direct = model(row, gpu, fitted, measured if one_of_several else None)
    pull = _pull(gpu, ref_gpu, at_reference, fitted)
    suffix = "one" if one_of_several else "ref"
    cases = (*(f"{case}|{suffix}" for case in direct.cases), *direct.cases)
    return direct.log_value + pull * (measured - at_reference.log_value), cases


def _pull(gpu: Gpu, ref_gpu: Gpu, at_reference: ModelForecast, fitted: FittedCoefficients) -> float:
    """How much of the reference's error is taken over: all of it on the GPU's own kind."""
    if gpu.name == ref_gpu.name:
        return 1.0
    case = at_reference.cases[0].split("|")[-1]
    return fitted.constants.get(f"ref_weight:{case}", fitted.constants["ref_weight:"])


def _gpus_meant(row: TableRow, gpu: Gpu, ref_gpu: Gpu, count: int | None, kind: str) -> tuple[int, ...]:
    """How many GPUs a reference may be of: as its name says, or one of the row's own kind, or as many or one of others.

    Where both are possible it is of as many, unless one is clearly nearer to the model.
    """
    gpus = row.count("n_gpus", 1) if kind in _SEVERAL else 1
    if count is not None:
        return (count,)
    return (1,) if gpu.name == ref_gpu.name else (gpus, 1) if gpus > 1 else (gpus,)


def _of(row: TableRow, gpus: int) -> TableRow:
    """The same on so many GPUs."""
    return TableRow({**row.cells, "n_gpus": str(gpus)}, row.number)


def _measured(row: TableRow, kind: str, reference: float, model_log: float) -> float:
    """Logarithm of the reference in the table's unit.

    A language model's latency may be given as such or as a speed in samples, steps or tokens; the reading nearest to
    the model is taken.
    """
    if kind != "llm":
        return math.log(reference)
    batch, tokens = row.required("batch"), row.required("batch") * row.required("seqlen")
    readings = (reference, _MS * batch / reference, _MS / reference, _MS * tokens / reference)
    return min((math.log(reading) for reading in readings), key=lambda value: abs(value - model_log))


def _image(row: TableRow, gpu: Gpu, fitted: FittedCoefficients, *, training: bool) -> ModelForecast:
    setup = _with_known_software(image_setup(row, gpu, training=training), fitted)
    log_s = image.log_image_s(setup, fitted.constants, fitted.coefficients, fitted.weights)
    card = "known gpu" if gpu.name in known_names(fitted, "gpu") else "new gpu"
    networks, families = known_names(fitted, "network"), known_names(fitted, "family")
    who = "network" if setup.network in networks else "family" if setup.family in families else "new"
    # The tables hold autocast alone; a step that mostly waits for its host depends on a CPU that was not measured.
    hosted = image.host_s(setup) > 0.7 * math.exp(log_s)
    unlike = (setup.precision in ("fp32", "tf32")) + (setup.compiled and training) + _launching(row, hosted=hosted)
    cases = (f"{card}|{who}", f"{card}|new", f"known gpu|{who}")
    return ModelForecast(log_value=-log_s, cases=cases, unlike=unlike)


def _launching(row: TableRow, *, hosted: bool) -> int:
    """What is not known of a step that mostly waits for its host: its operators, and more where its CPU is no class."""
    return hosted * (1 if cpu_class(row.text("cpu")) else _NO_CLASS)


def _with_known_software(setup: ImageSetup, fitted: FittedCoefficients) -> ImageSetup:
    """The nearest version of torch that was measured, compiled or not."""
    version, _, compiled = setup.software.partition("|")
    target = version_of(version)
    versions = [s for s in known_names(fitted, "software") if s.partition("|")[2] == compiled]
    if not versions or setup.software in versions:
        return setup
    return replace(setup, software=min(sorted(versions), key=lambda s: abs(version_of(s.partition("|")[0]) - target)))


def _image_train(row: TableRow, gpu: Gpu, fitted: FittedCoefficients, _: float | None) -> ModelForecast:
    return _image(row, gpu, fitted, training=True)


def _image_infer(row: TableRow, gpu: Gpu, fitted: FittedCoefficients, _: float | None) -> ModelForecast:
    return _image(row, gpu, fitted, training=False)


def _network(row: TableRow, gpu: Gpu, fitted: FittedCoefficients, measured: float | None) -> ModelForecast:
    setup = network_setup(row, gpu)
    one = known_jobs.log_speed(setup, fitted.weights)
    who = "network" if setup.network in known_names(fitted, "network") else "alone"
    known_architecture = setup.device.architecture in known_names(fitted, "architecture")
    card = (
        "known gpu" if gpu.name in known_names(fitted, "gpu") else "new gpu" if known_architecture else "new generation"
    )
    several = scaling_setup(row, setup, math.exp(one if measured is None else measured))
    if several.gpus == 1:
        cases: tuple[str, ...] = (f"{card}|{setup.network}", f"{card}|{who}", f"new gpu|{who}")
        return ModelForecast(log_value=one, cases=("alone", *cases) if who == "alone" else cases)
    efficiency = known_jobs.log_efficiency(several, load_fitted("scaling").weights)
    alike, level = known_jobs.scaling_class(several, efficiency), known_jobs.efficiency_level(efficiency)
    card = "new gpu" if card == "new generation" else card
    cases = (f"{card}|several|{alike}", f"{card}|several|{level}", f"{card}|several|network", f"{card}|{who}")
    log_value = one + math.log(several.gpus) + efficiency
    return ModelForecast(log_value=log_value, cases=("alone", *cases) if who == "alone" else cases)


def _gavel(row: TableRow, gpu: Gpu, fitted: FittedCoefficients, measured: float | None) -> ModelForecast:
    setup = cluster_job_setup(row, gpu)
    who = "network" if setup.job in known_names(fitted, "network") else "new" if setup.job in TOTALS else "alone"
    one = cluster_job.log_one(setup, fitted.weights)
    efficiency = cluster_job.log_efficiency(setup, fitted.weights, one if measured is None else measured)
    count = "several" if setup.gpus > 1 else "one"
    pair = f"{setup.job}|{gpu.name}"
    if setup.gpus > 1 and pair in known_names(fitted, "several"):
        case = "several|pair" if f"{pair}|{setup.gpus}" in known_names(fitted, "count") else "several|largest"
    elif pair in known_names(fitted, "pair"):
        case = "several|one" if setup.gpus > 1 else "one|pair"
    else:
        case = f"{count}|{who}"
    cases = (case, f"{count}|{who}", who)
    log_value = one + math.log(setup.gpus) + efficiency
    return ModelForecast(log_value=log_value, cases=("alone", *cases) if who == "alone" else cases)


def _llm(row: TableRow, gpu: Gpu, fitted: FittedCoefficients, _: float | None) -> ModelForecast:
    setup = llm_setup(row, gpu)
    log_value = llm.log_step_s(setup, fitted.constants) + math.log(_MS)
    log_value += fitted.weights.get(f"gpu={gpu.name}", 0.0)
    card = "known gpu" if gpu.name in known_names(fitted, "gpu") else "new gpu"
    who = "network" if setup.model.name in known_names(fitted, "network") else "new"
    mode = "train" if setup.training else "forward"
    hosted = llm.host_s(setup) > 0.7 * math.exp(log_value) / _MS
    unlike = (setup.element_bytes < _FP32_BYTES or setup.flash) + setup.compiled + _launching(row, hosted=hosted)
    return ModelForecast(log_value=log_value, cases=(f"{card}|{who}|{mode}", f"{card}|{who}"), unlike=unlike)


_MODELS: dict[str, Model] = {
    "image_train": _image_train,
    "image_infer": _image_infer,
    "network": _network,
    "gavel": _gavel,
    "llm": _llm,
}
