"""The JSON documents that are put together by their views: keys and types, for `docs/json-schemas.json`.

Documents that are a result dataclass are described by it. A test compares these with what the commands print.
"""

from typing import Any, TypedDict

from stallwise.cluster import Metrics
from stallwise.sentences import Sentence


class MeasuredStep(TypedDict):
    """The step as the run measured it."""

    step_s: float
    low_s: float | None
    high_s: float | None
    samples_per_s: float | None


class EstimatedStep(TypedDict):
    """The step that the model gives; `binds` and `bound_by` are codes, `binding` is a sentence."""

    gpus: int
    step_s: float
    low_s: float | None
    high_s: float | None
    samples_per_s: float | None
    efficiency: float | None
    split: dict[str, float]
    binds: str
    bound_by: str | None
    binding: str


class SetupInForce(TypedDict):
    """Every assumption about the set-up that is in force."""

    device: str | None
    instance: str | None
    gpus: int
    gpus_per_node: int | None
    nodes: int | None
    samples_per_gpu: float | None
    global_batch: float | None
    measured_global_batch: float | None
    passes: int | None
    workers: int | None
    measured_workers: int | None
    cores: float | None
    precision: str | None
    dataset_bytes: float | None
    storage_bytes_per_s: float | None


class ComputeChange(TypedDict):
    """Compute of a step, measured and predicted."""

    measured_s: float | None
    predicted_s: float
    low_s: float | None
    high_s: float | None


class MemoryFitRecord(TypedDict):
    """Bytes on one GPU, and whether they fit."""

    needed_bytes: float
    usable_bytes: float | None
    fits: bool | None
    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    gathered_bytes: float
    largest_batch: float | None
    sharded_over: int | None
    fits_sharded_over: int | None


class SettingChange(TypedDict):
    """What the question changed."""

    name: str
    before: str
    after: str


class LinkInUse(TypedDict):
    """A link that the exchange uses; `origin` is measured, fitted, listed or given."""

    tier: str
    bytes_per_s: float
    latency_s: float
    origin: str
    source: str | None
    ranks: int | None
    low: float | None
    high: float | None


class PredictedStepDocument(TypedDict):
    """What `whatif` and `predict` have in common."""

    name: str
    source: str
    measured: MeasuredStep | None
    baseline: EstimatedStep | None
    model_error: float | None
    setup: SetupInForce
    compute: ComputeChange
    memory: MemoryFitRecord | None
    changed: list[SettingChange]
    gpus_per_node: int | None
    links: list[LinkInUse]
    predicted: EstimatedStep
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    assumptions: list[Sentence]


class WhatifDocument(PredictedStepDocument):
    """`stallwise whatif --json`."""

    curve: list[EstimatedStep]
    curve_ends: Sentence | None


class JobTime(TypedDict):
    """Time and dollars of the whole job."""

    epoch_s: float | None
    first_epoch_s: float | None
    job_s: float
    low_s: float | None
    high_s: float | None
    samples_per_s: float | None
    usd: list[float] | None


class PredictDocument(PredictedStepDocument):
    """`stallwise predict --json`."""

    source_gpu: str | None
    gpu: str | None
    precision: str | None
    job: JobTime | None


class SpotOutcome(TypedDict):
    """What losing machines adds."""

    work_s: float
    losses: float
    redone_s: float
    checkpoint_every_s: float | None
    finished: float
    checkpoint_s: float
    provision_s: float
    restart_s: float
    on_demand_usd_per_h: float


class FleetRecord(TypedDict):
    """A fleet, its time and its cost; `binds` is a code."""

    fleet: str
    cloud: str
    instance: str
    region: str
    zone: str | None
    market: str
    gpu: str
    machines: int
    gpus: int
    gpus_per_machine: int
    usd_per_h: float
    listed_usd_per_h: float
    listed_as_of: str
    step_s: float
    step_low_s: float | None
    step_high_s: float | None
    samples_per_s: float
    epoch_s: float | None
    time_s: float
    time_low_s: float | None
    time_high_s: float | None
    billed_s: float
    usd: float
    usd_low: float | None
    usd_high: float | None
    machines_usd: float
    moving_usd: float
    keeping_usd: float
    in_time: float | None
    in_budget: float | None
    in_limits: float | None
    batch_per_gpu: float
    batch: float
    passes: int
    workers_per_gpu: int | None
    split_s: dict[str, float]
    binds: str
    spot: SpotOutcome | None


class LostFleet(FleetRecord):
    """A neighbour of the pick, and why it lost."""

    why: Sentence


class OwnMachineRecord(TypedDict):
    """The job where it runs now."""

    gpu: str | None
    gpus: int
    workers_per_gpu: int | None
    step_s: float
    time_s: float
    time_low_s: float | None
    time_high_s: float | None
    usd: float | None
    in_time: float | None
    speedup: float | None


class PlacesRecord(TypedDict):
    """Where the pick can be rented."""

    count: int
    lowest_usd_per_h: float
    lowest_in: str
    median_usd_per_h: float
    highest_usd_per_h: float
    highest_in: str


class PricesRecord(TypedDict):
    """Age of the prices."""

    oldest: str
    newest: str
    age_days: int
    stale: bool


class SearchRecord(TypedDict):
    """What was looked at, and what was left out for which reason."""

    offers: int
    instance_types: int
    fleets: int
    without_room: int
    batch_not_shared_evenly: int
    global_batch_too_large: int
    without_network: int
    not_judged: list[str]


class FleetPoint(TypedDict):
    """A fleet in the picture of time and cost."""

    time_s: float
    usd: float
    gpu: str
    fleet: str
    spot: bool


class RecommendDocument(TypedDict):
    """`stallwise recommend --json`; `code` is stay, stay-and-tune, rent or impossible."""

    job: str
    samples: float | None
    epochs: float | None
    deadline_s: float | None
    budget_usd: float | None
    sure: float
    batch: str
    verdict: Sentence
    code: str
    stay: bool
    impossible: Sentence | None
    now: OwnMachineRecord | None
    now_with_more_workers: OwnMachineRecord | None
    pick: FleetRecord | None
    spot_plan: list[str] | None
    front: list[FleetRecord]
    lost: list[LostFleet]
    places: PlacesRecord | None
    prices: PricesRecord | None
    looked_at: SearchRecord
    points: list[FleetPoint]
    warnings: list[Sentence]
    assumptions: list[Sentence]


class PolicyFigures(TypedDict):
    """A policy in a setting: figures of all seeds, by name."""

    policy: str
    clairvoyant: bool
    mean: dict[str, float]
    low: dict[str, float]
    high: dict[str, float]
    mean_low: dict[str, float]
    mean_high: dict[str, float]


class SimulationSetting(TypedDict):
    """A cluster and a load, with every policy."""

    cluster: str
    gpus: int
    load: float
    demand: float
    gpu_s: float
    span_s: float
    largest_gang: int
    verdict: Sentence | None
    policies: list[PolicyFigures]


class _SimulationCase(TypedDict):
    policy: str
    clairvoyant: bool
    cluster: str
    gpus: int
    load: float
    seed: int | None
    took_s: float | None


# One simulation: what was simulated, and every figure of its metrics.
_figures: dict[str, Any] = dict(Metrics.__annotations__)
SimulationRow = TypedDict("SimulationRow", {**_SimulationCase.__annotations__, **_figures})  # type: ignore[misc]


class SimulateDocument(TypedDict):
    """`stallwise simulate --json`."""

    trace: str
    format: str
    jobs: int
    arrivals: str
    contention: bool
    seeds: int
    rows: list[SimulationRow]
    settings: list[SimulationSetting]
    notes: list[Sentence]


DOCUMENTS: dict[str, Any] = {
    "whatif": WhatifDocument,
    "predict": PredictDocument,
    "recommend": RecommendDocument,
    "simulate": SimulateDocument,
}
"""By the name of the document."""
