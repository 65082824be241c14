"""What `stallwise recommend` is told, turned into facts: work, names of the catalog, places, amounts, losses."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stallwise.cli import spot_inputs
from stallwise.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from stallwise.cloud.subject import Subject
    from stallwise.cloud.wish import SpotTerms
    from stallwise.hardware.catalog import Catalog
    from stallwise.hardware.machine import MachineRecord


def work(epochs: float | None, epoch_samples: float | None, samples: float | None) -> tuple[float, float]:
    """Samples of an epoch, and epochs."""
    if samples is not None:
        if epochs is not None:
            raise InputError("Give --samples of the whole job, or --epochs with --epoch-samples.")
        return (samples, 1.0) if epoch_samples is None else (epoch_samples, samples / epoch_samples)
    if epochs is None:
        raise InputError("Say how long the job is: --samples of the whole job, or --epochs with --epoch-samples.")
    if epoch_samples is None:
        raise InputError("A run does not know how large the data set is: give --epoch-samples with --epochs.")
    return epoch_samples, epochs


def _split(given: Sequence[str] | None) -> list[str]:
    return [word.strip() for text in given or () for word in text.split(",") if word.strip()]


def names(kind: str, given: Sequence[str] | None, known: Sequence[str]) -> frozenset[str] | None:
    """Those of the known names that were given, whatever their case; None: all."""
    words = _split(given)
    by_lower = {name.lower(): name for name in known}
    for word in words:
        if word.lower() not in by_lower:
            raise UnknownNameError(kind, word, known)
    return frozenset(by_lower[word.lower()] for word in words) or None


def regions(given: Sequence[str] | None, clouds: Sequence[str] | None, catalog: "Catalog") -> frozenset[str] | None:
    """Regions with prices, of the clouds asked for."""
    found = names("region with prices", given, catalog.regions())
    wanted = names("cloud", clouds, catalog.clouds)
    for region in found or ():
        if wanted and not any(region in catalog.regions(cloud) for cloud in wanted):
            raise InputError(
                f"No price is listed for {region} in {', '.join(sorted(wanted))}. Leave --clouds out, or import prices "
                "with stallwise catalog import."
            )
    return found


def gpus(given: Sequence[str] | None, catalog: "Catalog") -> frozenset[str] | None:
    """GPUs by name, family or label."""
    return frozenset(name for word in _split(given) for name in catalog.gpu_names(word)) or None


def instances(given: Sequence[str] | None, catalog: "Catalog") -> frozenset[str] | None:
    """Instance types by name."""
    return frozenset(catalog.instance(word).name for word in _split(given)) or None


def machine(path: Path | None) -> "MachineRecord | None":
    """The record of the run's own machine."""
    from stallwise.hardware.machine import read_machine

    return None if path is None else read_machine(path)


def price(usd_per_h: float | None) -> float | None:
    """Of one machine; 0 for one that costs nothing more."""
    if usd_per_h is not None and not 0 <= usd_per_h < float("inf"):
        raise InputError(f"--here-price takes dollars per hour from 0, not {usd_per_h:g}.")
    return usd_per_h


def place(text: str | None, catalog: "Catalog") -> tuple[str, str] | None:
    """`us-east-1` or `aws/us-east-1`."""
    if text is None:
        return None
    cloud, slash, region = text.partition("/")
    name = region if slash else cloud
    for one in catalog.clouds:
        if slash and one.lower() != cloud.lower():
            continue
        for known in catalog.regions(one):
            if known.lower() == name.lower():
                return one, known
    raise UnknownNameError("region with prices", name, catalog.regions())


def data_bytes(text: str | None, subject: "Subject", epoch_samples: float | None, *, needed: bool) -> float | None:
    """Of the data set: as given, or an epoch of what the run read per sample."""
    from stallwise.units import parse_bytes

    if text is not None:
        return parse_bytes(text)
    if epoch_samples is not None and subject.bytes_per_sample is not None:
        return subject.bytes_per_sample * epoch_samples
    if needed:
        raise InputError("How large the data set is is not known here: give --data-size with --data-in.")
    return None


def machines(given: Sequence[str], catalog: "Catalog") -> "dict[str, MachineRecord]":
    """Machine records by instance type."""
    from stallwise.hardware.machine import read_machine

    found = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals:
            raise InputError(f"--machine takes INSTANCE=FILE, like p4d.24xlarge=machine.json, not {text!r}.")
        instance, record = catalog.instance(name), read_machine(Path(path))
        drivers = {gpu for host in record.hosts for gpu in host.gpus}
        seen = {gpu.name for gpu in map(catalog.gpu_of_driver_name, drivers) if gpu is not None}
        if seen and instance.gpu.name not in seen:
            raise InputError(f"{path} was measured on {', '.join(sorted(seen))}; {name} has {instance.gpu.name}.")
        found[instance.name] = record
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Starting:
    """From the order to the first step of a rented fleet, on demand and spot alike."""

    provision_s: float
    startup_s: float
    said: tuple[str, ...]


def starting(provision: str | None, startup: str | None) -> Starting:
    """As given, else as published; a sentence says so."""
    from stallwise.spot.plan.regress import machine_start, worker_start

    there, trains = machine_start(), worker_start()
    guessed = []
    if provision is None:
        guessed.append(f"are there {there.s:.0f} s after the order (nobody bills for it; --provision)")
    if startup is None:
        guessed.append(f"train {trains.s:.0f} s later (--startup)")
    said = f"Rented machines, on demand and spot alike, {' and '.join(guessed)}: Google's GPUs of 2019."
    return Starting(
        provision_s=there.s if provision is None else seconds(provision) or 0.0,
        startup_s=trains.s if startup is None else seconds(startup) or 0.0,
        said=(said,) if guessed else (),
    )


def spot_terms(
    run: Path,
    mean_life: str | None,
    lifetimes: str | None,
    begins: Starting,
    checkpoint: str | None,
    parameters: float | None,
) -> "SpotTerms":
    """Lifetimes and what a loss costs, as `stallwise spot plan` takes them from the same run."""
    from stallwise.cloud.wish import SpotTerms
    from stallwise.spot.lifetimes.models import Exponential

    if (mean_life is None) == (lifetimes is None):
        raise InputError(
            "How long do spot machines live? A price does not say. Give --mean-life 12h, or --lifetimes (an event log, "
            "or GPU/REGION of a published table; see stallwise spot fit published)."
        )
    size = None if parameters is None else f"{12 * parameters:.0f}B"
    save_s, said = _saving(run, checkpoint, size)
    if lifetimes is not None:
        name, life, trace = spot_inputs.zone(lifetimes)
    else:
        mean_s = seconds(mean_life) or 0.0
        if mean_s <= 0:
            raise InputError(f"--mean-life takes a time above 0, not {mean_life!r}.")
        name, life, trace = f"a mean life of {mean_life}, whatever the age", Exponential(mean_s), None
    return SpotTerms(
        life=life,
        name=name,
        trace=trace,
        save_s=save_s,
        provision_s=begins.provision_s,
        restart_s=begins.startup_s,
        said=said,
        given=("--mean-life", mean_life) if mean_life is not None else ("--lifetimes", lifetimes or ""),
    )


def _saving(run: Path, checkpoint: str | None, size: str | None) -> tuple[float, tuple[str, ...]]:
    """Seconds of one checkpoint, with what was assumed; options by the names that they have here."""

    def here(words: str) -> str:
        return words.replace("--checkpoint-time", "--checkpoint 30s").replace("--checkpoint-size", "--checkpoint 30s")

    try:
        save_s, _, _, said = spot_inputs.times(spot_inputs.measured(run), checkpoint, size, "0s", "0s")
    except InputError as error:
        raise InputError(here(str(error))) from None
    return save_s, tuple(map(here, said))


def seconds(text: str | None) -> float | None:
    """`12h`; None stays None."""
    from stallwise.units import parse_seconds

    return None if text is None else parse_seconds(text)


def share(text: str) -> float:
    """`90%` or `0.9`."""
    from stallwise.units import parse_share

    return parse_share(text)


def usd(text: str | None) -> float | None:
    """`500usd`, `$500` or `500`."""
    if text is None:
        return None
    plain = text.lower().strip().removeprefix("$").removesuffix("usd").replace(",", "").strip()
    try:
        return float(plain)
    except ValueError:
        raise InputError(f"{text!r} is not an amount like 500usd.") from None


def count(text: str | None) -> float | None:
    """`25.6M`, `7B` or a number."""
    if text is None:
        return None
    scales = {"k": 1e3, "m": 1e6, "b": 1e9}
    scale = scales.get(text[-1:].lower(), 1.0)
    try:
        found = float(text[:-1] if scale > 1 else text) * scale
    except ValueError:
        found = 0.0
    if found <= 0:
        raise InputError(f"{text!r} is not a number of parameters like 25.6M.")
    return found


def workers(count: int | None) -> int | None:
    """At least one."""
    if count is not None and count < 1:
        raise InputError(f"--workers takes a whole number from 1, not {count}.")
    return count
