"""Steps and memory of transformers under a parallel layout, with 80 % intervals.

Constants are those of a framework (`fitting/layouts.py`); intervals are what such predictions were off by for models
that no fit had seen.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import NormalDist
from typing import Any, TypeVar

import numpy as np

from stallwise.analysis._layout_tables import LayoutRow, layout_row, machine_of
from stallwise.analysis.tables import TableFormat, TableRow
from stallwise.errors import InputError
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.coefficients import FittedCoefficients, load_fitted
from stallwise.hardware.instance import Instance, gpu_link_bytes_per_s
from stallwise.model.layout.columns import Column, LayoutColumns, LayoutMachine, LayoutSetup, columns_of
from stallwise.model.layout.memory import memory_parts, peak_bytes, recomputed_to_fit
from stallwise.model.layout.step import step_parts, step_s
from stallwise.model.statistics.conformal import ErrorSpread
from stallwise.workload.transformer import Checkpointing, Layout, Transformer

_Choice = TypeVar("_Choice")
_ONE_NODE = frozenset(("vtrain",))
_MEMORY_OF = "nanotron"
"""The framework whose memory was measured on most rows: others without measurements are taken to need as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutForecast:
    """A row's quantity in the unit of its table, and the peak memory of the fullest GPU."""

    predicted: float
    low: float
    high: float
    memory_bytes: float
    memory_low_bytes: float
    memory_high_bytes: float
    fits: bool
    """Whether the fullest GPU holds it."""
    fit_probability: float


def forecast_layout_rows(
    table_format: TableFormat, rows: Sequence[TableRow], catalog: Catalog
) -> list[LayoutForecast | InputError]:
    """One forecast per row, all of them computed together; a row that cannot be answered has its error."""
    described: list[LayoutRow | InputError] = []
    for row in rows:
        try:
            described.append(layout_row(table_format.name, row, catalog))
        except InputError as error:
            described.append(error)
    answers = iter(_answers(table_format.name, [one for one in described if isinstance(one, LayoutRow)]))
    return [next(answers) if isinstance(one, LayoutRow) else one for one in described]


def _answers(framework: str, rows: Sequence[LayoutRow]) -> list[LayoutForecast]:
    if not rows:
        return []
    fitted = load_fitted("layout")
    constants = framework_constants(fitted, framework)
    columns = columns_of([row.setup for row in rows])
    if not rows[0].says_recomputation:
        columns = recomputed_to_fit(columns, constants)
    seconds, needed = step_s(columns, constants), peak_bytes(columns, constants)
    # Where rows of one node alone were fitted, those of several are as uncertain as the least certain framework.
    several = "" if framework in _ONE_NODE else framework
    memory = _spread(fitted, f"memory|{framework}", f"memory|{_MEMORY_OF}")
    forecasts = []
    for row, step, bytes_ in zip(rows, seconds.tolist(), needed.tolist(), strict=True):
        on_one = row.setup.layout.gpus <= row.setup.machine.gpus_per_node
        low_s, high_s = _spread(fitted, framework if on_one else several, framework).around(step)
        ends = sorted((row.value(low_s), row.value(high_s)))
        low_bytes, high_bytes = memory.around(bytes_)
        forecasts.append(
            LayoutForecast(
                predicted=row.value(step),
                low=ends[0],
                high=ends[1],
                memory_bytes=bytes_,
                memory_low_bytes=low_bytes,
                memory_high_bytes=high_bytes,
                fits=bytes_ <= row.setup.machine.memory_bytes,
                fit_probability=_fit_probability(low_bytes, high_bytes, row.setup.machine.memory_bytes),
            )
        )
    return forecasts


def framework_constants(fitted: FittedCoefficients, framework: str) -> dict[str, float]:
    """The constants of a framework; where its memory was not measured, those of the one with most measurements."""
    return {
        name.partition(":")[2]: value
        for source in (_MEMORY_OF, framework)
        for name, value in fitted.constants.items()
        if name.startswith(f"{source}:")
    }


def _spread(fitted: FittedCoefficients, *cases: str) -> ErrorSpread:
    return ErrorSpread(*next(fitted.spreads[case] for case in (*cases, "") if case in fitted.spreads))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRequest:
    """A transformer on so many GPUs; what of the layout is None is searched, or as small as can be."""

    model: Transformer
    gpu: str
    gpus: int
    global_batch: int
    """Sequences per step."""
    sequence: int = 4096
    gpus_per_node: int = 8
    network_bytes_per_s: float | None = None
    """Between nodes, all adapters of a node together; None: 400 Gb/s per GPU."""
    tensor: int | None = None
    pipeline: int | None = None
    context: int = 1
    expert: int | None = None
    zero: int | None = None
    micro_batch: int | None = None
    checkpointing: Checkpointing | None = None

    def __post_init__(self) -> None:
        for name, least in (("gpus", 1), ("global_batch", 1), ("sequence", 1), ("gpus_per_node", 1), ("context", 1)):
            if not least <= getattr(self, name) <= _MOST[name]:
                raise InputError(f"{name} takes {least} to {_MOST[name]:,}, not {getattr(self, name)}.", fields=(name,))
        for name, option in (("tensor", "tp"), ("pipeline", "pp"), ("expert", "ep"), ("micro_batch", "micro_batch")):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"A layout's degrees are at least 1, not {value}.", fields=(option,))

    @property
    def adapter_bytes_per_s(self) -> float:
        """Between nodes, per GPU."""
        whole = self.network_bytes_per_s
        return _ADAPTER_BYTES_PER_S if whole is None else whole / self.gpus_per_node


_ADAPTER_BYTES_PER_S = 50e9
_MOST = {"gpus": 131_072, "global_batch": 10**7, "sequence": 10**7, "gpus_per_node": 1024, "context": 1024}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPrediction:
    """The step and the memory of one layout."""

    layout: Layout
    step_s: float
    low_s: float
    high_s: float
    parts_s: Mapping[str, float]
    tokens_per_s: float
    mfu: float
    memory_bytes: float
    memory_low_bytes: float
    memory_high_bytes: float
    memory_parts_bytes: Mapping[str, float]
    fit_probability: float
    gpu_memory_bytes: float

    @property
    def fits(self) -> bool:
        """Whether it fits more likely than not."""
        return self.fit_probability >= 0.5


def predict_layout(request: LayoutRequest, catalog: Catalog) -> LayoutPrediction:
    """The layout that was asked for: degrees that were not given are 1, activations are recomputed where they must."""
    layout = _asked_layout(request)
    first = _predictions(request, [layout], catalog)[0]
    if request.checkpointing is None and not first.fits:
        again = _predictions(request, [replace(layout, checkpointing="full")], catalog)[0]
        return again if again.fit_probability > first.fit_probability else first
    return first


FIT_CONFIDENCE = 0.9
"""Probability of fitting below which a layout is not picked. With it every pick among the Ultra-Scale Playbook's
set-ups ran (`tests/cloud/test_layouts.py`); at 80 % three of thirteen never did."""


def best_layouts(
    request: LayoutRequest, catalog: Catalog, *, confidence: float = FIT_CONFIDENCE
) -> tuple[LayoutPrediction, ...]:
    """Every layout of the GPUs that fits with this confidence, the fastest first."""
    layouts = list(all_layouts(request))
    if not layouts:
        raise _no_layout(request)
    fitting = [one for one in _predictions(request, layouts, catalog) if one.fit_probability >= confidence]
    if not fitting:
        raise InputError(
            f"{request.model.name} fits no layout of {request.gpus} × {request.gpu} with {confidence:.0%} probability.",
            fields=("gpus",),
        )
    return tuple(sorted(fitting, key=lambda one: one.step_s))


def fastest_layouts(
    request: LayoutRequest, machines: Sequence[LayoutMachine], *, confidence: float = FIT_CONFIDENCE
) -> list[LayoutPrediction | None]:
    """The fastest layout that fits with this confidence on each of several kinds of nodes; None: no layout fits.

    The nodes have `request.gpus_per_node` GPUs each; `machines` replace the request's GPU and network.
    """
    layouts = list(all_layouts(request))
    best: list[LayoutPrediction | None] = [None] * len(machines)
    for framework, chosen in _by_framework(request.model, layouts).items():
        setups = [
            LayoutSetup(model=request.model, layout=layouts[i], sequence=request.sequence, machine=machines[0])
            for i in (chosen if machines else ())
        ]
        columns = columns_of(setups)
        for number, machine in enumerate(machines):
            place = _fastest(columns.on(machine), framework, confidence)
            if place is not None:
                one = next(_predicted([replace(setups[place], machine=machine)], framework))
                other = best[number]
                best[number] = one if other is None or one.step_s < other.step_s else other
    return best


def instance_machine(instance: Instance) -> LayoutMachine:
    """One machine of an instance type at listed rates; a network rate of 0 where none is listed."""
    network = instance.network.bytes_per_s if instance.network else None
    machine = machine_of(
        instance.gpu,
        network_bytes_per_s=(network or 0.0) / instance.gpu_count,
        gpus_per_node=instance.gpu_count,
    )
    return replace(machine, link_bytes_per_s=gpu_link_bytes_per_s(instance) or machine.link_bytes_per_s)


def _fastest(columns: LayoutColumns, framework: str, confidence: float) -> int | None:
    """Place of the fastest set-up that fits with this confidence."""
    fitted = load_fitted("layout")
    constants = framework_constants(fitted, framework)
    low, high = _memory_bounds(fitted, framework, columns, peak_bytes(columns, constants))
    deviations = NormalDist().inv_cdf(confidence) / (2 * NormalDist().inv_cdf(0.9))
    held = np.sqrt(low * high) * (high / low) ** deviations
    fitting = np.flatnonzero(held <= columns.memory_bytes)
    if not len(fitting):
        return None
    return int(fitting[np.argmin(step_s(columns.take(fitting), constants))])


def _memory_bounds(
    fitted: FittedCoefficients, framework: str, columns: LayoutColumns, needed: Column
) -> tuple[Column, Column]:
    """80 % bounds of the peak memory.

    Memory was measured with ZeRO-0 and 1 and without recomputation; all else is as uncertain as the widest case.
    """
    plain = (columns.zero < 2) & (columns.recomputed == 0) & (columns.selective == 0) & (framework == _MEMORY_OF)
    measured, widest = _spread(fitted, f"memory|{_MEMORY_OF}"), _spread(fitted, "")
    low, high = (np.exp(np.where(plain, getattr(measured, end), getattr(widest, end))) for end in ("low", "high"))
    return needed * low, needed * high


def _no_layout(request: LayoutRequest) -> InputError:
    """Why nothing can be searched: the first degree without which there would be layouts, else GPUs and batch."""
    job = f"{request.gpus} GPUs, {request.model.name} and a global batch of {request.global_batch}"
    for name, (option, what) in _DEGREES.items():
        value = getattr(request, name)
        without: Any = 1 if name == "context" else None
        if value != without and any(True for _ in all_layouts(replace(request, **{name: without}))):
            return InputError(f"No layout of {job} has {value} {what}.", fields=(option,))
    return InputError(f"No layout splits {job} as asked.", fields=("gpus", "global_batch"))


_DEGREES = {
    "tensor": ("tp", "tensor ranks"),
    "pipeline": ("pp", "pipeline stages"),
    "context": ("cp", "context ranks"),
    "expert": ("ep", "expert ranks"),
    "micro_batch": ("micro_batch", "sequences per micro-batch"),
    "zero": ("zero", "as its ZeRO stage"),
}


def all_layouts(request: LayoutRequest) -> Iterator[Layout]:
    """All data, tensor, pipeline and expert degrees that divide the GPUs, the layers, the heads and the batch.

    Selective recomputation saves nothing where attention is fused, and nobody measured sharded parameters (ZeRO-3)
    beside tensor or pipeline groups: both are left out unless they were asked for.
    """
    r = request
    tensors = _choices(r.tensor, _divisors(r.gpus, 4 * r.gpus_per_node))
    for tensor, pipeline in itertools.product(tensors, _choices(r.pipeline, _divisors(r.gpus, r.model.layers))):
        group = tensor * pipeline * r.context
        if r.gpus % group or r.global_batch % (r.gpus // group):
            continue
        data = r.gpus // group
        each = r.global_batch // data
        stages = [v for v in (1, 2, 4) if v == 1 or (pipeline > 1 and r.model.layers % (pipeline * v) == 0)]
        for expert, micro_batch, zero, kind, interleaving in itertools.product(
            _choices(r.expert, _divisors(data)),
            _choices(r.micro_batch, _divisors(each, _LARGEST_MICRO_BATCH)),
            _choices(r.zero, [0] if data == 1 else [0, 1] if group > 1 else [0, 1, 3]),
            _choices(r.checkpointing, _SEARCHED),
            stages,
        ):
            layout = Layout(
                data=data,
                tensor=tensor,
                pipeline=pipeline,
                context=r.context,
                expert=expert,
                zero=zero,
                micro_batch=micro_batch,
                accumulation=max(each // micro_batch, 1),
                interleaving=interleaving,
                checkpointing=kind,
            )
            if each % micro_batch == 0 and _mismatch(r.model, layout) is None:
                yield layout


_SEARCHED: tuple[Checkpointing, ...] = ("none", "full")


def _choices(given: _Choice | None, otherwise: Sequence[_Choice]) -> Sequence[_Choice]:
    """What was asked for, else what is searched."""
    return otherwise if given is None else (given,)


_LARGEST_MICRO_BATCH = 64


def _divisors(number: int, limit: int | None = None) -> list[int]:
    return [one for one in range(1, min(number, limit or number) + 1) if number % one == 0]


def _asked_layout(r: LayoutRequest) -> Layout:
    tensor, pipeline, micro = r.tensor or 1, r.pipeline or 1, r.micro_batch or 1
    group = tensor * pipeline * r.context
    if r.gpus % group:
        raise InputError(f"{r.gpus} GPUs are no multiple of {group}, the GPUs of one replica.", fields=("gpus",))
    data = r.gpus // group
    if r.global_batch % (data * micro):
        raise InputError(
            f"A global batch of {r.global_batch} is no multiple of {data} replicas times {micro} sequences.",
            fields=("global_batch", "micro_batch"),
        )
    layout = Layout(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        context=r.context,
        expert=r.expert or 1,
        zero=r.zero or 0,
        micro_batch=micro,
        accumulation=r.global_batch // (data * micro),
        checkpointing=r.checkpointing or "none",
    )
    mismatch = _mismatch(r.model, layout)
    if mismatch is not None:
        raise mismatch
    return layout


def _mismatch(model: Transformer, layout: Layout) -> InputError | None:
    """Why a layout does not split a model."""
    if layout.pipeline > model.layers or model.heads % layout.tensor:
        sizes = f"{model.layers} layers and {model.heads} heads"
        groups = f"{layout.pipeline} stages and {layout.tensor} tensor ranks"
        return InputError(f"{model.name} has {sizes}: {groups} do not split it.", fields=("pp", "tp"))
    if model.experts % layout.expert or (layout.data * layout.context) % layout.expert:
        replicas = layout.data * layout.context
        return InputError(
            f"{model.name} has {model.experts} experts and the layout {replicas} replicas: expert groups of "
            f"{layout.expert} split one of them unevenly.",
            fields=("ep",),
        )
    return None


def _predictions(request: LayoutRequest, layouts: Sequence[Layout], catalog: Catalog) -> list[LayoutPrediction]:
    """Predictions by what a framework measured with such layouts took."""
    gpu = catalog.gpu(request.gpu)
    per_node = min(request.gpus_per_node, request.gpus)
    network = request.adapter_bytes_per_s
    machine = machine_of(gpu, network_bytes_per_s=network, gpus_per_node=per_node)
    out: dict[int, LayoutPrediction] = {}
    for framework, chosen in _by_framework(request.model, layouts).items():
        setups = [
            LayoutSetup(model=request.model, layout=layouts[i], sequence=request.sequence, machine=machine)
            for i in chosen
        ]
        out |= zip(chosen, _predicted(setups, framework), strict=True)
    return [out[i] for i in range(len(layouts))]


def _by_framework(model: Transformer, layouts: Sequence[Layout]) -> dict[str, list[int]]:
    """Places of the layouts by whose constants hold."""
    places: dict[str, list[int]] = {}
    for place, layout in enumerate(layouts):
        places.setdefault(framework_of(model, layout), []).append(place)
    return places


def framework_of(model: Transformer, layout: Layout) -> str:
    """Whose constants hold: NeMo's for experts and context groups, llm-foundry's for ZeRO-3, else nanotron's."""
    if model.experts > 1 or layout.context > 1:
        return "nemo"
    return "fsdp" if layout.zero == 3 else "nanotron"


def _predicted(setups: Sequence[LayoutSetup], framework: str) -> Iterator[LayoutPrediction]:
    fitted = load_fitted("layout")
    constants = framework_constants(fitted, framework)
    columns = columns_of(setups)
    parts, memory = step_parts(columns, constants), memory_parts(columns, constants)
    step_spread = _spread(fitted, framework)
    seconds, needed = parts.step_s.tolist(), memory.total_bytes.tolist()
    bounds = [end.tolist() for end in _memory_bounds(fitted, framework, columns, memory.total_bytes)]
    for i, setup in enumerate(setups):
        low_s, high_s = step_spread.around(seconds[i])
        low_bytes, high_bytes = bounds[0][i], bounds[1][i]
        layout, machine = setup.layout, setup.machine
        tokens = layout.global_batch * setup.sequence
        yield LayoutPrediction(
            layout=layout,
            step_s=seconds[i],
            low_s=low_s,
            high_s=high_s,
            parts_s={f.name.removesuffix("_s"): float(getattr(parts, f.name)[i]) for f in fields(parts)},
            tokens_per_s=tokens / seconds[i],
            mfu=tokens * setup.model.flop_per_token(setup.sequence) / seconds[i] / layout.gpus / machine.flop_per_s,
            memory_bytes=needed[i],
            memory_low_bytes=low_bytes,
            memory_high_bytes=high_bytes,
            memory_parts_bytes={
                f.name.removesuffix("_bytes"): float(getattr(memory, f.name)[i]) for f in fields(memory)
            },
            fit_probability=_fit_probability(low_bytes, high_bytes, machine.memory_bytes),
            gpu_memory_bytes=machine.memory_bytes,
        )


_TENTH = 1.2816  # of a normal distribution's deviations beyond which a tenth lies


def _fit_probability(low_bytes: float, high_bytes: float, limit_bytes: float) -> float:
    """That the need is at most the limit, its logarithm normal with 80 % between the ends."""
    middle = (math.log(low_bytes) + math.log(high_bytes)) / 2
    deviation = (math.log(high_bytes) - math.log(low_bytes)) / 2 / _TENTH
    return 0.5 * (1 + math.erf((math.log(limit_bytes) - middle) / deviation / math.sqrt(2)))
