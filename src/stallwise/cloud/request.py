"""What a recommendation is asked: the job's length, limits, what may be rented, and the user's own prices and quotas.

A discount or quota names what it applies to by words joined with `/`: cloud, region, instance type, GPU (or its
family), market, in any order: `aws=15%`, `aws/p4d.24xlarge/on-demand=30%`, `gcp/us-central1/H100=16`. All of its words
must match an offer. Of several discounts that match, the largest counts; of several quotas, the smallest.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stallwise.analysis.fleets import BATCH_GROWTH, MAX_NODES, FleetSettings
from stallwise.analysis.profile import GradientNoise
from stallwise.analysis.target import Workers
from stallwise.errors import InputError, UnknownNameError
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.gpu import plain_name
from stallwise.hardware.instance import MARKETS, Offer
from stallwise.hardware.machine import MachineRecord
from stallwise.inputs import read_text
from stallwise.model.statistics.noise_scale import samples_factor
from stallwise.model.step.prediction import Columns
from stallwise.sentences import Sentence
from stallwise.spot.lifetimes.log import AvailabilityTrace
from stallwise.spot.lifetimes.models import Lifetime
from stallwise.spot.plan.fleet import OnLoss
from stallwise.spot.plan.times import machine_start, worker_start
from stallwise.units import parse_share

_MOST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferRule:
    """A discount (fraction taken off the price) or a quota (number of GPUs), and the words an offer must match."""

    words: tuple[str, ...]
    value: float

    def fits(self, offer: Offer) -> bool:
        """Whether all words match the offer."""
        instance, gpu = offer.instance, offer.instance.gpu
        facets = {instance.cloud, offer.region, instance.name, gpu.name, gpu.family, offer.market}
        return set(self.words) <= {plain_name(facet) for facet in facets}


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTerms:
    """Discounts and quotas; without any, list prices and no limit."""

    discounts: tuple[OfferRule, ...] = ()
    quotas: tuple[OfferRule, ...] = ()

    def usd_per_h(self, offer: Offer) -> float:
        """Price in USD per hour after the largest discount that matches."""
        return offer.usd_per_h * (1.0 - max((rule.value for rule in self.discounts if rule.fits(offer)), default=0.0))

    def most_gpus(self, offer: Offer) -> float:
        """Number of GPUs that may be rented; infinite without a quota."""
        return min((rule.value for rule in self.quotas if rule.fits(offer)), default=float("inf"))


def terms_of(
    catalog: Catalog, discounts: Iterable[str] = (), quotas: Iterable[str] = (), file: Path | None = None
) -> PriceTerms:
    """Parse texts like `aws/p4d.24xlarge=30%` and a YAML file with the keys `discounts` and `quotas`."""
    listed = {} if file is None else _read(file)
    reductions = [*(f"{key}={value}" for key, value in listed.get("discounts", {}).items()), *discounts]
    limits = [*(f"{key}={value}" for key, value in listed.get("quotas", {}).items()), *quotas]
    names = _known_words(catalog)
    return PriceTerms(
        discounts=tuple(_discount(text, names) for text in reductions),
        quotas=tuple(_quota(text, names) for text in limits),
    )


def _read(path: Path) -> Mapping[str, Mapping[str, Any]]:
    import yaml

    try:
        content = yaml.safe_load(read_text(path, limit=_MOST_BYTES))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}). Check the path.") from None
    except RecursionError:
        raise InputError(f"{path} is nested too deeply to be a file of discounts and quotas. Check the file.") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{path} is not YAML ({str(error).splitlines()[0]}).") from None
    usable = isinstance(content, dict) and all(
        key in ("discounts", "quotas")
        and isinstance(value, dict)
        # Of a value that is a list with aliases inside the text could be endless.
        and all(isinstance(part, str | int | float) for pair in value.items() for part in pair)
        for key, value in content.items()
    )
    if not usable:
        raise InputError(f"{path} must hold `discounts:` and `quotas:`, each with lines like `aws/us-east-1: 20%`.")
    checked: Mapping[str, Mapping[str, Any]] = content
    return checked


def _known_words(catalog: Catalog) -> dict[str, str]:
    names = {*catalog.clouds, *catalog.regions(), *MARKETS}
    names |= {name for _, name in catalog.instances} | set(catalog.gpus) | {gpu.family for gpu in catalog.gpus.values()}
    return {plain_name(name): name for name in names}


def _words(text: str, names: Mapping[str, str], kind: str) -> tuple[tuple[str, ...], str]:
    left, equals, right = text.partition("=")
    words = tuple(plain_name(word) for word in left.split("/") if word.strip())
    if not equals or not words or not right.strip():
        raise InputError(f"{text!r} is not {kind}.")
    for word, shown in zip(words, (w for w in left.split("/") if w.strip()), strict=True):
        if word not in names:
            raise UnknownNameError("cloud, region, instance type, GPU or market", shown, names.values())
    return words, right.strip()


def _discount(text: str, names: Mapping[str, str]) -> OfferRule:
    words, value = _words(text, names, "a discount like aws/p4d.24xlarge=30%")
    return OfferRule(words=words, value=parse_share(value))


def _quota(text: str, names: Mapping[str, str]) -> OfferRule:
    words, value = _words(text, names, "a quota of GPUs like aws/us-east-1=16")
    if not value.isascii() or not value.isdigit():
        raise InputError(f"{text!r}: a quota is a whole number of GPUs.")
    return OfferRule(words=words, value=float(value))


CONFIDENCE = 0.9
"""Probability with which a limit must be met."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotTerms:
    """How long spot machines live and what a loss costs, as `spot/plan` takes it."""

    life: Lifetime
    name: str
    """Description of where the lifetimes come from."""
    save_s: float
    provision_s: float
    restart_s: float
    trace: AvailabilityTrace | None = None
    """Number of machines available over time, from a log; simultaneous losses are replayed from it."""
    on_loss: OnLoss = "wait"
    replays: int = 10_000
    seed: int = 1
    assumptions: tuple[Sentence, ...] = ()
    plan_arguments: tuple[str, ...] = ()
    """Where the lifetimes come from, as arguments of `stallwise spot plan`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendRequest:
    """A job's length and limits, and what may be rented for it. Times in seconds, costs in USD."""

    samples: float
    """Number of samples of an epoch."""
    epochs: float = 1.0
    cold_first: bool = True
    """Whether the first epoch finds nothing in memory; not where `samples` are those of the whole job."""
    deadline_s: float | None = None
    budget_usd: float | None = None
    confidence: float = CONFIDENCE
    clouds: frozenset[str] | None = None
    regions: frozenset[str] | None = None
    gpus: frozenset[str] | None = None
    instances: frozenset[str] | None = None
    max_nodes: int = MAX_NODES
    retired: bool = False
    arm: bool = False
    """Whether machines with ARM CPUs are allowed: a training image has to be built for them."""
    on_demand: bool = True
    spot: SpotTerms | None = None
    global_batch: float | None = None
    """Samples of a step of all GPUs together; None: each GPU keeps its batch."""
    scale_batch: bool = False
    """Whether the global batch may grow beyond 8 times the measured one."""
    noise: GradientNoise | None = None
    """The run's gradient noise scale: with `scale_batch`, larger batches take more samples to the same loss."""
    workers: Workers = None
    data_in: tuple[str, str] | None = None
    """(cloud, region) of the data; None: wherever the fleet is."""
    data_bytes: float | None = None
    provision_s: float = 0.0
    """Time until the machines are ready; not billed."""
    startup_s: float = 0.0
    """Time from there to the first step."""
    evaluation_s: float = 0.0
    checkpoint_s: float = 0.0
    checkpoint_every_s: float | None = None
    terms: PriceTerms = field(default_factory=PriceTerms)
    machines: Mapping[str, MachineRecord] = field(default_factory=dict)
    """Machine records by instance type; they take precedence over listed values."""
    own_record: MachineRecord | None = None
    """Record of the run's own machine, with which those are compared."""
    own_usd_per_h: float | None = None
    """Price of one machine of the run's own; None: not known."""
    assumptions: tuple[Sentence, ...] = ()
    """What had to be assumed about the request, in sentences."""

    def __post_init__(self) -> None:
        if not (self.samples > 0 and self.epochs > 0):
            raise InputError(f"A job needs samples and epochs above 0, not {self.samples:g} and {self.epochs:g}.")
        for name, value in (("deadline", self.deadline_s), ("budget", self.budget_usd)):
            if value is not None and not value > 0:
                raise InputError(f"A {name} must be above 0, not {value:g}.", fields=(name,))
        if not 0.5 <= self.confidence < 1:
            raise InputError(
                f"Limits are met with a probability from 50% to 99%, not {self.confidence:.0%}.", fields=("confidence",)
            )
        if not 1 <= self.max_nodes <= 1024:
            raise InputError(
                f"The largest number of nodes is from 1 to 1024, not {self.max_nodes}.", fields=("max_nodes",)
            )

    @property
    def settings(self) -> FleetSettings:
        """Batch, loader workers and dataset of every fleet."""
        return FleetSettings(
            global_batch=self.global_batch,
            largest_growth=math.inf if self.scale_batch else BATCH_GROWTH,
            workers=self.workers,
            dataset_bytes=self.data_bytes,
        )

    def samples_factor(self, batch: Columns) -> Columns:
        """Samples that steps of `batch` samples take to the same loss, over those of the measured batch."""
        if not self.scale_batch or self.noise is None:
            return np.ones_like(batch)
        scale = self.noise.samples if math.isfinite(self.noise.samples) else self.noise.low
        return samples_factor(batch, scale) / samples_factor(np.full_like(batch, self.noise.batch), scale)

    @property
    def limited(self) -> bool:
        """Whether there is a deadline or a budget."""
        return self.deadline_s is not None or self.budget_usd is not None


def job_length(
    epochs: float | None, epoch_samples: float | None, samples: float | None, recorded: int | None = None
) -> tuple[float, float]:
    """Samples of an epoch and number of epochs, from either way to state how long a job is.

    `recorded` are the samples of an epoch as the run has them; they count where no others are given.
    """
    for name, value in (("epochs", epochs), ("epoch_samples", epoch_samples), ("samples", samples)):
        if value is not None and not 0 < value <= _LONGEST:
            raise InputError(
                f"Samples and epochs are numbers above 0 and up to {_LONGEST:g}, not {value:g}.", fields=(name,)
            )
    if samples is not None:
        if epochs is not None:
            raise InputError(
                "Give the samples of the whole job, or its epochs with the samples of one, not both.",
                fields=("samples", "epochs", "epoch_samples"),
            )
        return (samples, 1.0) if epoch_samples is None else (epoch_samples, samples / epoch_samples)
    if epochs is None:
        raise InputError(
            "Say how long the job is: the samples of the whole job, or its epochs with the samples of one.",
            fields=("samples", "epochs", "epoch_samples"),
        )
    of_epoch = epoch_samples if epoch_samples is not None else recorded
    if of_epoch is None:
        raise InputError(
            "The run does not say how large its dataset is: it has no length, or an older version profiled it. "
            "Give the samples of an epoch.",
            fields=("epoch_samples",),
        )
    return of_epoch, epochs


_LONGEST = 1e18
"""Samples, or epochs, beyond which a number is a slip: a million jobs the size of the largest known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStart:
    """Seconds from the order to the first step of a rented fleet, on demand and spot alike."""

    provision_s: float
    startup_s: float
    assumptions: tuple[Sentence, ...]


def fleet_start(provision_s: float | None = None, startup_s: float | None = None) -> FleetStart:
    """The start of a fleet: as given, else the published means, which the assumptions then name."""
    machine, worker = machine_start(), worker_start()
    means = []
    if provision_s is None:
        means.append(f"are ready {machine.s:.0f} s after the order (not billed)")
    if startup_s is None:
        means.append(f"train {worker.s:.0f} s later")
    sentence = Sentence(
        "machines.startup", f"Rented machines, on demand and spot alike, {' and '.join(means)}: Google's GPUs of 2019."
    )
    return FleetStart(
        provision_s=machine.s if provision_s is None else provision_s,
        startup_s=worker.s if startup_s is None else startup_s,
        assumptions=(sentence,) if means else (),
    )
