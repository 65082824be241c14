"""What the user wants: how much work, until when, for how much, and where it may run."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stallwise.cloud.fleets import MAX_NODES
from stallwise.cloud.terms import Terms
from stallwise.errors import InputError
from stallwise.hardware.machine import MachineRecord
from stallwise.spot.lifetimes.log import Trace
from stallwise.spot.lifetimes.models import Lifetime
from stallwise.spot.plan.fleet import OnLoss

SURE = 0.9
"""A limit counts as met when it is with this probability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotTerms:
    """How long spot machines live and what a loss costs, as `spot/plan` takes it."""

    life: Lifetime
    name: str
    """Where the lifetimes come from, for people."""
    save_s: float
    provision_s: float
    restart_s: float
    trace: Trace | None = None
    """Of a log: how many machines were to be had when; losses that come together are replayed from it."""
    on_loss: OnLoss = "wait"
    replays: int = 10_000
    seed: int = 1
    said: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    """Where the lifetimes come from, as an option of `stallwise spot plan`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The question."""

    samples: float
    """Of an epoch."""
    epochs: float = 1.0
    deadline_s: float | None = None
    budget_usd: float | None = None
    sure: float = SURE
    clouds: frozenset[str] | None = None
    regions: frozenset[str] | None = None
    gpus: frozenset[str] | None = None
    instances: frozenset[str] | None = None
    max_nodes: int = MAX_NODES
    retired: bool = False
    arm: bool = False
    """Also machines with ARM processors: a training image has to be built for them."""
    on_demand: bool = True
    spot: SpotTerms | None = None
    scale_batch: bool = False
    workers: int | None = None
    data_in: tuple[str, str] | None = None
    """(cloud, region) of the data; None: wherever the fleet is."""
    data_bytes: float | None = None
    provision_s: float = 0.0
    """Until the machines are there; nobody bills for it."""
    startup_s: float = 0.0
    """From there to the first step."""
    evaluation_s: float = 0.0
    checkpoint_s: float = 0.0
    checkpoint_every_s: float | None = None
    terms: Terms = field(default_factory=Terms)
    machines: Mapping[str, MachineRecord] = field(default_factory=dict)
    """Machine records by instance type; they go before listed values."""
    here: MachineRecord | None = None
    """The record of the run's own machine, against which theirs are held."""
    here_usd_per_h: float | None = None
    """What one machine of the run's own costs; None: not known."""
    said: tuple[str, ...] = ()
    """What of the question had to be assumed."""

    def __post_init__(self) -> None:
        if not (self.samples > 0 and self.epochs > 0):
            raise InputError(f"A job needs samples and epochs above 0, not {self.samples:g} and {self.epochs:g}.")
        for name, value in (("--deadline", self.deadline_s), ("--budget", self.budget_usd)):
            if value is not None and not value > 0:
                raise InputError(f"{name} takes more than 0, not {value:g}.")
        if not 0.5 <= self.sure < 1:
            raise InputError(f"--sure takes a probability from 50% to 99%, not {self.sure:.0%}.")
        if not 1 <= self.max_nodes <= 1024:
            raise InputError(f"--max-nodes takes a whole number from 1 to 1024, not {self.max_nodes}.")

    @property
    def limited(self) -> bool:
        """Whether there is a deadline or a budget."""
        return self.deadline_s is not None or self.budget_usd is not None
