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

from stallwise.errors import InputError, nearest_names
from stallwise.hardware.catalog import Catalog, load_catalog
from stallwise.hardware.fitted import Fitted, known, load_fitted
from stallwise.hardware.gpu import Gpu
from stallwise.model import compute_cluster_job, compute_image, compute_llm, compute_network, compute_scaling
from stallwise.model.compute_image import ImageSetup
from stallwise.model.conformal import Spread
from stallwise.record.table_rows import Format, TableRow, read_table
from stallwise.record.table_setups import (
    cluster_job_setup,
    counted,
    fleet_of,
    gpu_of,
    image_setup,
    llm_setup,
    network_setup,
    scaling_setup,
)
from stallwise.workload.zoo_shapes import TOTALS

_MS = 1000.0
_SEVERAL = ("network", "gavel")
"""Kinds of tables with a number of GPUs."""
_CLEARLY = math.log(1.5)
_FAR = math.log(3.0)  # a reference this far from the model is in another unit, or wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A value with its interval, in the unit of the table's own column."""

    predicted: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Direct:
    """The model's own answer: logarithm of the value, and how well such rows are known."""

    log_value: float
    cases: tuple[str, ...]
    """Keys of spreads, the closest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableForecast:
    """Every row of a table, answered."""

    format: Format
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    forecasts: tuple[Forecast, ...]


def forecast_table(path: Path, catalog: Catalog | None = None) -> TableForecast:
    """Read, recognise, answer; an `InputError` names the first row that cannot be answered."""
    found, columns, rows = read_table(path)
    answered = forecast_rows(found, rows, catalog or load_catalog())
    return TableForecast(format=found, columns=tuple(columns), rows=tuple(rows), forecasts=tuple(answered))


def forecast_rows(found: Format, rows: Sequence[TableRow], catalog: Catalog) -> list[Forecast]:
    """One forecast per row."""
    fitted = load_fitted(found.name)
    model = _MODELS[found.name]
    return [_forecast(row, catalog, fitted, model, found.name) for row in rows]


Model = Callable[[TableRow, Gpu, Fitted, float | None], Direct]
"""The last argument is the logarithm of one GPU's own speed, where it was measured."""


def _forecast(row: TableRow, catalog: Catalog, fitted: Fitted, model: Model, kind: str) -> Forecast:
    row = counted(row, catalog, takes_several=kind in _SEVERAL)
    gpu = gpu_of(row, catalog)
    reference = row.number_of("ref_throughput") if row.text("ref_gpu") else None
    if reference is None:
        direct = model(row, gpu, fitted, None)
        value, cases = direct.log_value, direct.cases
        if "alone" in cases:
            raise _unknown(row, known(fitted, "network"))
    else:
        value, cases = _from_reference(row, catalog, gpu, fitted, model, kind, reference)
    spread = Spread(*next(fitted.spreads[case] for case in (*cases, "") if case in fitted.spreads))
    predicted = math.exp(value)
    low, high = spread.around(predicted)
    return Forecast(predicted=predicted, low=low, high=high)


def _unknown(row: TableRow, networks: Collection[str]) -> InputError:
    """A job nobody measured, without a measurement of the user's own."""
    near = nearest_names(row.name("model"), networks)
    hint = f"Did you mean {' or '.join(near)}? " if near else f"Known are {', '.join(sorted(networks))}. "
    return row.error(
        f"nothing is known of a job called {row.name('model')!r}. {hint}Else give ref_gpu and ref_throughput."
    )


def _from_reference(
    row: TableRow, catalog: Catalog, gpu: Gpu, fitted: Fitted, model: Model, kind: str, reference: float
) -> tuple[float, tuple[str, ...]]:
    """The logarithm of the value, and the cases it may be in."""
    ref_gpu, count = fleet_of(row, catalog, "ref_gpu")
    theirs = [model(_of(row, gpus), ref_gpu, fitted, None) for gpus in _gpus_meant(row, gpu, ref_gpu, count, kind)]
    off = [abs(_measured(row, kind, reference, found.log_value) - found.log_value) for found in theirs]
    # A job nobody measured has a unit of its own.
    there = theirs[0] if "alone" in theirs[0].cases or off[0] < off[-1] + _CLEARLY else theirs[-1]
    measured = _measured(row, kind, reference, there.log_value)
    if "alone" not in there.cases and abs(measured - there.log_value) > 4 * _FAR:
        raise row.error(
            f"ref_throughput {reference:g} is {math.exp(abs(measured - there.log_value)):.0f} times off "
            "what its GPU could do. Check its unit."
        )
    one_of_several = gpu.name == ref_gpu.name and count in (None, 1) and row.count("n_gpus", 1) > 1
    direct = model(row, gpu, fitted, measured if one_of_several else None)
    pull = _pull(gpu, ref_gpu, there, fitted)
    suffix = "one" if one_of_several else "ref"
    cases = (*(f"{case}|{suffix}" for case in direct.cases), *direct.cases)
    return direct.log_value + pull * (measured - there.log_value), cases


def _pull(gpu: Gpu, ref_gpu: Gpu, there: Direct, fitted: Fitted) -> float:
    """How much of the reference's error is taken over: all of it on the GPU's own kind."""
    if gpu.name == ref_gpu.name:
        return 1.0
    case = there.cases[0].split("|")[-1]
    return fitted.constants.get(f"ref_weight:{case}", fitted.constants["ref_weight:"])


def _gpus_meant(row: TableRow, gpu: Gpu, ref_gpu: Gpu, said: int | None, kind: str) -> tuple[int, ...]:
    """How many GPUs a reference may be of: as its name says, or one of the row's own kind, or as many or one of others.

    Where both are possible it is of as many, unless one is clearly nearer to the model.
    """
    gpus = row.count("n_gpus", 1) if kind in _SEVERAL else 1
    if said is not None:
        return (said,)
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


def _image(row: TableRow, gpu: Gpu, fitted: Fitted, *, training: bool) -> Direct:
    setup = _with_known_software(image_setup(row, gpu, training=training), fitted)
    log_s = compute_image.log_image_s(setup, fitted.constants, fitted.coefficients, fitted.weights)
    card = "known gpu" if gpu.name in known(fitted, "gpu") else "new gpu"
    networks, families = known(fitted, "network"), known(fitted, "family")
    who = "network" if setup.network in networks else "family" if setup.family in families else "new"
    return Direct(log_value=-log_s, cases=(f"{card}|{who}", f"{card}|new", f"known gpu|{who}"))


def _with_known_software(setup: ImageSetup, fitted: Fitted) -> ImageSetup:
    """The nearest version of torch that was measured, compiled or not."""
    version, _, compiled = setup.software.partition("|")
    wanted = _version(version)
    found = [s for s in known(fitted, "software") if s.partition("|")[2] == compiled]
    if not found or setup.software in found:
        return setup
    return replace(setup, software=min(sorted(found), key=lambda s: abs(_version(s.partition("|")[0]) - wanted)))


def _version(text: str) -> float:
    parts = text.split(".")
    try:
        return float(parts[0]) + float(parts[1]) / 100 if len(parts) > 1 else float(parts[0])
    except ValueError:
        return 2.04


def _image_train(row: TableRow, gpu: Gpu, fitted: Fitted, _: float | None) -> Direct:
    return _image(row, gpu, fitted, training=True)


def _image_infer(row: TableRow, gpu: Gpu, fitted: Fitted, _: float | None) -> Direct:
    return _image(row, gpu, fitted, training=False)


def _network(row: TableRow, gpu: Gpu, fitted: Fitted, measured: float | None) -> Direct:
    setup = network_setup(row, gpu)
    one = compute_network.log_speed(setup, fitted.weights)
    who = "network" if setup.network in known(fitted, "network") else "alone"
    seen = setup.device.architecture in known(fitted, "architecture")
    card = "known gpu" if gpu.name in known(fitted, "gpu") else "new gpu" if seen else "new generation"
    several = scaling_setup(row, setup, math.exp(one if measured is None else measured))
    if several.gpus == 1:
        cases: tuple[str, ...] = (f"{card}|{setup.network}", f"{card}|{who}", f"new gpu|{who}")
        return Direct(log_value=one, cases=("alone", *cases) if who == "alone" else cases)
    efficiency = compute_scaling.log_efficiency(several, load_fitted("scaling").weights)
    alike, level = compute_scaling.scaling_class(several, efficiency), compute_scaling.level(efficiency)
    card = "new gpu" if card == "new generation" else card
    cases = (f"{card}|several|{alike}", f"{card}|several|{level}", f"{card}|several|network", f"{card}|{who}")
    log_value = one + math.log(several.gpus) + efficiency
    return Direct(log_value=log_value, cases=("alone", *cases) if who == "alone" else cases)


def _gavel(row: TableRow, gpu: Gpu, fitted: Fitted, measured: float | None) -> Direct:
    setup = cluster_job_setup(row, gpu)
    who = "network" if setup.job in known(fitted, "network") else "new" if setup.job in TOTALS else "alone"
    one = compute_cluster_job.log_one(setup, fitted.weights)
    efficiency = compute_cluster_job.log_efficiency(setup, fitted.weights, one if measured is None else measured)
    count = "several" if setup.gpus > 1 else "one"
    pair = f"{setup.job}|{gpu.name}"
    if setup.gpus > 1 and pair in known(fitted, "several"):
        case = "several|pair" if f"{pair}|{setup.gpus}" in known(fitted, "count") else "several|largest"
    elif pair in known(fitted, "pair"):
        case = "several|one" if setup.gpus > 1 else "one|pair"
    else:
        case = f"{count}|{who}"
    cases = (case, f"{count}|{who}", who)
    log_value = one + math.log(setup.gpus) + efficiency
    return Direct(log_value=log_value, cases=("alone", *cases) if who == "alone" else cases)


def _llm(row: TableRow, gpu: Gpu, fitted: Fitted, _: float | None) -> Direct:
    setup = llm_setup(row, gpu)
    log_value = compute_llm.log_step_s(setup, fitted.constants) + math.log(_MS)
    log_value += fitted.weights.get(f"gpu={gpu.name}", 0.0)
    card = "known gpu" if gpu.name in known(fitted, "gpu") else "new gpu"
    who = "network" if setup.model.name in known(fitted, "network") else "new"
    mode = "train" if setup.training else "forward"
    return Direct(log_value=log_value, cases=(f"{card}|{who}|{mode}", f"{card}|{who}"))


_MODELS: dict[str, Model] = {
    "image_train": _image_train,
    "image_infer": _image_infer,
    "network": _network,
    "gavel": _gavel,
    "llm": _llm,
}
