"""Listed instance types under networks: stalls, speed and cost per epoch of machines that nobody here owns.

Stash's instance study (Sharma et al., ICDCS 2023) from the catalog instead of from launches. Of every type and network,
all GPUs of one machine, each with its batch:

    t0            one GPU alone, data in place
    t1            all GPUs of the machine, data in place        interconnect  (t1 - t0) / t1
    t3            the same with the loader                      prep          (t3 - t1) / t3
    t2            the same with what memory does not keep       fetch         (t2 - t3) / t2
    tN            two such machines, data in place              network       (tN - t1) / t1, may exceed 100 %
    epoch, usd    samples / speed at t2, at the cheapest offer

A network is a measured job, or an image network by its name: compute then comes from the model of tables
(`analysis/table_forecast`), gradients from the counted parameters, the loader from what a core prepares.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from stallwise.analysis.fleets import Fleets, FleetSettings, nodes_of, one_fleet, steps_of
from stallwise.analysis.job import JobModel, model_of_job
from stallwise.analysis.table_forecast import forecast_rows
from stallwise.analysis.tables import FORMATS, TableRow
from stallwise.errors import InputError, UnknownNameError
from stallwise.hardware.board import Board
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.gpu import Gpu
from stallwise.hardware.instance import Instance, Offer, board_of, by_price
from stallwise.model.data.datapath import LoaderWork
from stallwise.model.exchange.overlap import Overlap
from stallwise.model.step.epoch import cost_usd
from stallwise.model.step.job import MeasuredJob
from stallwise.sentences import Sentence
from stallwise.workload.layers import Layer, LayerTrace
from stallwise.workload.zoo import ImageNetwork, image_networks

Trait = Literal[
    "cheapest_epoch",
    "near_cheapest",
    "fastest_epoch",
    "fast_gpu",
    "no_stall",
    "interconnect_stall",
    "through_host",
    "prep_stall",
    "fetch_stall",
    "network_stall",
    "dear",
    "dear_and_slow",
]
Rule = Literal["cheapest_per_hour", "newest_gpu", "most_gpus"]

IMAGENET_SAMPLES = 1_281_167
IMAGENET_BYTES = 146 * 2**30
VCPU_SAMPLES_PER_S = 130.0
"""Images that a vCPU prepares, half of a core: with DALI on the CPU one to three cores of a V100 server prepared 256 to
284 images/s a core (msr-fiddle/synergy, AlexNet)."""
DEFAULT_NETWORKS = ("resnet18", "resnet50", "vgg11")
_LAYERS = 20
_GRADIENT_BYTES = 4
_NOTABLE = 0.1
"""A stall from this fraction on is named as a shortcoming."""
_NEAR = 1.1
"""Within this factor of the best counts as good as the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceStudyRequest:
    """The instance types, networks and data of a study."""

    networks: tuple[str, ...] = DEFAULT_NETWORKS
    """Image networks of the zoo; not used where jobs are given."""
    batch: float = 64.0
    """Samples of each GPU and step, of networks by name."""
    families: tuple[str, ...] = ()
    """Beginnings of names of instance types; none: all."""
    gpu: str | None = None
    cloud: str | None = None
    region: str | None = None
    retired: bool = False
    samples: float = IMAGENET_SAMPLES
    dataset_bytes: float | None = IMAGENET_BYTES

    def __post_init__(self) -> None:
        for name in self.networks:
            if name not in image_networks():
                raise UnknownNameError("image network", name, image_networks())
        if not 1 <= self.batch <= 1e6:
            raise InputError(f"A batch has from 1 to a million samples, not {self.batch:g}.", fields=("batch",))
        if not 1 <= self.samples <= 1e15:
            raise InputError("An epoch has at least one sample.", fields=("epoch_samples",))


@dataclass(frozen=True, slots=True, kw_only=True)
class StudiedInstance:
    """One network on one instance type. Stalls are fractions; None: not known, or there is nothing to compare."""

    cloud: str
    instance: str
    gpu: str
    gpus: int
    network: str
    region: str
    usd_per_h: float
    step_s: float
    low_s: float
    high_s: float
    samples_per_s: float
    interconnect: float | None
    prep: float | None
    fetch: float | None
    network_stall: float | None
    """Two machines over one: time added, of one machine's step."""
    epoch_s: float
    usd: float
    """Cost of an epoch."""
    traits: tuple[Trait, ...] = ()
    """Codes of advantages and shortcomings; `report/views/instances` has their sentences."""

    @property
    def key(self) -> tuple[str, str]:
        """Cloud and instance type."""
        return self.cloud, self.instance


@dataclass(frozen=True, slots=True, kw_only=True)
class NaiveChoice:
    """What choosing by a rule of thumb costs beside the pick."""

    rule: Rule
    cloud: str
    instance: str
    usd: float
    epoch_s: float
    extra_cost: float
    """Cost of an epoch over the pick's, less 1."""
    time_ratio: float
    """Time of an epoch over the pick's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkStudy:
    """One network on every instance type, cheapest epoch first, and what rules of thumb would have cost."""

    network: str
    rows: tuple[StudiedInstance, ...]
    naive: tuple[NaiveChoice, ...]

    @property
    def pick(self) -> StudiedInstance:
        """The cheapest epoch."""
        return self.rows[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceStudy:
    """The whole study; `unanswered` says by the name of a GPU or an instance type why it has no row."""

    samples: float
    dataset_bytes: float | None
    networks: tuple[NetworkStudy, ...]
    unanswered: dict[str, Sentence] = field(default_factory=dict)


def study_instances(catalog: Catalog, request: InstanceStudyRequest, jobs: Sequence[JobModel] = ()) -> InstanceStudy:
    """Study every listed type; an `InputError` where none matches or none can be judged."""
    offers = _cheapest_offers(catalog, request)
    if not offers:
        raise InputError(
            "No instance type with an on-demand price matches. Give fewer conditions, or include retired types.",
            fields=("family", "gpu", "cloud", "region"),
        )
    unanswered: dict[str, Sentence] = {}
    named = {job.job.name: [(offer, job) for offer in offers] for job in jobs} or {
        name: list(_subjects(image_networks()[name], offers, catalog, request, unanswered)) for name in request.networks
    }
    # A run keeps its loader workers as in `whatif`; a network by name has none of its own.
    settings = FleetSettings(workers=None if jobs else "auto", dataset_bytes=request.dataset_bytes)
    studies = [_study_of(name, subjects, request.samples, settings, unanswered) for name, subjects in named.items()]
    answered = [study for study in studies if study.rows]
    if not answered:
        raise InputError(f"No instance type could be judged: {next(iter(unanswered.values()))}")
    return InstanceStudy(
        samples=request.samples,
        dataset_bytes=request.dataset_bytes,
        networks=tuple(answered),
        unanswered=unanswered,
    )


def _cheapest_offers(catalog: Catalog, request: InstanceStudyRequest) -> list[Offer]:
    """The cheapest on-demand offer of every type that matches."""
    query = catalog.query(
        gpu=request.gpu, cloud=request.cloud, region=request.region, market="on-demand", retired=request.retired
    )
    best: dict[tuple[str, str], Offer] = {}
    for offer in catalog.find(query):
        instance = offer.instance
        if request.families and not instance.name.lower().startswith(tuple(f.lower() for f in request.families)):
            continue
        key = (instance.cloud, instance.name)
        if key not in best or by_price(offer) < by_price(best[key]):
            best[key] = offer
    return list(best.values())


def _subjects(
    network: ImageNetwork,
    offers: Sequence[Offer],
    catalog: Catalog,
    request: InstanceStudyRequest,
    unanswered: dict[str, Sentence],
) -> Iterator[tuple[Offer, JobModel]]:
    """The network as a job on the GPU of each type."""
    models: dict[str, JobModel | None] = {}
    for offer in offers:
        gpu = offer.instance.gpu
        if gpu.name not in models:
            try:
                models[gpu.name] = job_of_network(network, gpu, catalog, request)
            except InputError as error:
                models[gpu.name] = None
                unanswered[gpu.name] = Sentence("gpu.unanswered", str(error))
        model = models[gpu.name]
        if model is not None:
            yield offer, model


def job_of_network(network: ImageNetwork, gpu: Gpu, catalog: Catalog, request: InstanceStudyRequest) -> JobModel:
    """Return a counted image network as a job on one GPU: equal layers, backward twice as long as forward."""
    table = next(table for table in FORMATS if table.name == "image_train")
    cells = {
        "model": network.name,
        "gpu": gpu.name,
        "batch": f"{request.batch:g}",
        "img_size": str(network.image_size),
        "precision": "amp",
    }
    (forecast,) = forecast_rows(table, [TableRow(cells, 1)], catalog)
    step_s = request.batch / forecast.predicted
    layers = tuple(
        Layer(
            name=f"{network.name} {i + 1}",
            forward_s=step_s / 3 / _LAYERS,
            backward_s=step_s * 2 / 3 / _LAYERS,
            gradient_bytes=round(_GRADIENT_BYTES * network.parameters / _LAYERS),
        )
        for i in range(_LAYERS)
    )
    job = MeasuredJob(
        name=network.name,
        trace=LayerTrace(source=f"{network.name} by name", layers=layers),
        overlap=Overlap(),
        gpus=1,
        samples=request.batch,
        compute_factors=(forecast.predicted / forecast.high, forecast.predicted / forecast.low),
        work=LoaderWork(prepare_s=request.batch / VCPU_SAMPLES_PER_S, blocked_s=0.0, workers=1),
    )
    per_sample = request.dataset_bytes / request.samples if request.dataset_bytes else None
    return replace(model_of_job(job), bytes_per_sample=per_sample)


def _study_of(
    name: str,
    subjects: Sequence[tuple[Offer, JobModel]],
    samples: float,
    settings: FleetSettings,
    unanswered: dict[str, Sentence],
) -> NetworkStudy:
    rows, instances = [], {}
    for offer, model in subjects:
        instance = offer.instance
        kinds, _, unjudged = nodes_of(model, [instance])
        unanswered |= unjudged
        row = _studied(name, offer, model, samples, settings) if kinds else None
        if row is not None:
            rows.append(row)
            instances[row.key] = instance
        elif kinds:
            unanswered[instance.name] = Sentence(
                "instance.unanswered", "The link between its GPUs is not listed, or the job does not fit."
            )
    rows.sort(key=lambda row: (row.usd, row.epoch_s, row.key))
    with_traits = tuple(replace(row, traits=_traits(row, rows, instances[row.key])) for row in rows)
    return NetworkStudy(network=name, rows=with_traits, naive=_naive(with_traits, instances))


def _studied(
    name: str, offer: Offer, model: JobModel, samples: float, settings: FleetSettings
) -> StudiedInstance | None:
    """None: the job does not run on all GPUs of the type, or nothing is known of their link."""
    instance = offer.instance
    kinds, _, _ = nodes_of(model, [instance])
    kind = kinds[0]
    if not kind.linked:
        return None
    bare = replace(model, job=replace(model.job, work=None), bytes_per_sample=None)
    whole = one_fleet(kind, used=instance.gpu_count, nodes=1)
    alone, inside = (
        _step_s(bare, one_fleet(kind, used=used, nodes=1), FleetSettings()) for used in (1, instance.gpu_count)
    )
    loaded = _step_s(model, whole, replace(settings, dataset_bytes=None))
    steps = steps_of(model, whole, settings)
    step_s, low_s, high_s = (float(column[0]) for column in (steps.step_s, steps.low_s, steps.high_s))
    if alone is None or inside is None or loaded is None or not steps.fits[0]:
        return None
    two = _step_s(bare, one_fleet(kind, used=instance.gpu_count, nodes=2), FleetSettings()) if kind.networked else None
    speed = model.samples * float(steps.batch[0]) * instance.gpu_count / step_s
    epoch_s = samples / speed
    return StudiedInstance(
        cloud=instance.cloud,
        instance=instance.name,
        gpu=instance.gpu.name,
        gpus=instance.gpu_count,
        network=name,
        region=offer.region,
        usd_per_h=offer.usd_per_h,
        step_s=step_s,
        low_s=low_s,
        high_s=high_s,
        samples_per_s=speed,
        interconnect=max(0.0, 1 - alone / inside) if instance.gpu_count > 1 else None,
        prep=max(0.0, 1 - inside / loaded) if model.job.work else None,
        fetch=max(0.0, 1 - loaded / step_s) if model.bytes_per_sample and settings.dataset_bytes else None,
        network_stall=None if two is None else max(0.0, two / inside - 1),
        epoch_s=epoch_s,
        usd=cost_usd(epoch_s, offer.usd_per_h),
    )


def _step_s(model: JobModel, fleet: Fleets, settings: FleetSettings) -> float | None:
    steps = steps_of(model, fleet, settings)
    return float(steps.step_s[0]) if steps.fits[0] else None


def _traits(row: StudiedInstance, rows: Sequence[StudiedInstance], instance: Instance) -> tuple[Trait, ...]:
    """Codes of what speaks for and against a type, beside the others under the same network."""
    cheapest, fastest = min(other.usd for other in rows), min(other.epoch_s for other in rows)
    per_gpu = statistics.median(other.samples_per_s / other.gpus for other in rows)
    board = board_of(instance)
    codes: dict[Trait, bool] = {
        "cheapest_epoch": row.usd == cheapest,
        "near_cheapest": cheapest < row.usd <= _NEAR * cheapest,
        "fastest_epoch": row.epoch_s == fastest,
        "fast_gpu": row.samples_per_s / row.gpus > 2 * per_gpu,
        "no_stall": max(row.interconnect or 0.0, row.prep or 0.0, row.fetch or 0.0) < _NOTABLE / 10,
        "interconnect_stall": (row.interconnect or 0.0) >= _NOTABLE,
        "through_host": row.gpus > 1 and (row.interconnect or 0.0) >= _NOTABLE and _through_host(board, row.gpus),
        "prep_stall": (row.prep or 0.0) >= _NOTABLE,
        "fetch_stall": (row.fetch or 0.0) >= _NOTABLE,
        "network_stall": (row.network_stall or 0.0) >= 1.0,
        "dear": row.usd > 2 * cheapest,
        "dear_and_slow": any(o.usd_per_h < row.usd_per_h and o.epoch_s < row.epoch_s for o in rows),
    }
    return tuple(code for code, holds in codes.items() if holds)


def _through_host(board: Board | None, gpus: int) -> bool:
    return board is not None and not board.nvlink and board.peer_gpus < gpus


def _naive(rows: Sequence[StudiedInstance], instances: dict[tuple[str, str], Instance]) -> tuple[NaiveChoice, ...]:
    """Three rules of thumb; of several that a rule allows, the cheapest per hour."""
    if not rows:
        return ()
    newest = max(instances[row.key].gpu.year or 0 for row in rows)
    most = max(row.gpus for row in rows)
    allowed: dict[Rule, list[StudiedInstance]] = {
        "cheapest_per_hour": list(rows),
        "newest_gpu": [row for row in rows if (instances[row.key].gpu.year or 0) == newest],
        "most_gpus": [row for row in rows if row.gpus == most],
    }
    pick = rows[0]
    choices = []
    for rule, candidates in allowed.items():
        row = min(candidates, key=lambda one: (one.usd_per_h, one.key))
        choices.append(
            NaiveChoice(
                rule=rule,
                cloud=row.cloud,
                instance=row.instance,
                usd=row.usd,
                epoch_s=row.epoch_s,
                extra_cost=row.usd / pick.usd - 1,
                time_ratio=row.epoch_s / pick.epoch_s,
            )
        )
    return tuple(choices)
