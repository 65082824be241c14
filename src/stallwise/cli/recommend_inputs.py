"""Options of `stallwise recommend` as values: work, names of the catalog, places, amounts, losses."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stallwise.cli import spot_inputs
from stallwise.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from stallwise.analysis.analysis import Analysis
    from stallwise.analysis.job import JobModel
    from stallwise.cloud.request import FleetStart, SpotTerms
    from stallwise.hardware.catalog import Catalog
    from stallwise.hardware.machine import MachineRecord


def _split(texts: Sequence[str] | None) -> list[str]:
    return [word.strip() for text in texts or () for word in text.split(",") if word.strip()]


def names(kind: str, texts: Sequence[str] | None, choices: Sequence[str]) -> frozenset[str] | None:
    """The choices named in the texts, ignoring case; None: all."""
    words = _split(texts)
    by_lower = {name.lower(): name for name in choices}
    for word in words:
        if word.lower() not in by_lower:
            raise UnknownNameError(kind, word, choices)
    return frozenset(by_lower[word.lower()] for word in words) or None


def regions(texts: Sequence[str] | None, clouds: Sequence[str] | None, catalog: "Catalog") -> frozenset[str] | None:
    """Regions with prices, of the chosen clouds."""
    chosen = names("region with prices", texts, catalog.regions())
    cloud_names = names("cloud", clouds, catalog.clouds)
    for region in chosen or ():
        if cloud_names and not any(region in catalog.regions(cloud) for cloud in cloud_names):
            raise InputError(
                f"No price is listed for {region} in {', '.join(sorted(cloud_names))}. Leave --clouds out, or import "
                "prices with stallwise catalog import."
            )
    return chosen


def gpus(texts: Sequence[str] | None, catalog: "Catalog") -> frozenset[str] | None:
    """GPUs by name, family or label."""
    return frozenset(name for word in _split(texts) for name in catalog.gpu_names(word)) or None


def instances(texts: Sequence[str] | None, catalog: "Catalog") -> frozenset[str] | None:
    """Instance types by name."""
    return frozenset(catalog.instance(word).name for word in _split(texts)) or None


def machine(path: Path | None) -> "MachineRecord | None":
    """The record of the run's own machine."""
    from stallwise.hardware.machine import read_machine

    return None if path is None else read_machine(path)


def data_region(text: str | None, catalog: "Catalog") -> tuple[str, str] | None:
    """The cloud and region of a text such as `us-east-1` or `aws/us-east-1`."""
    if text is None:
        return None
    cloud, slash, region = text.partition("/")
    name = region if slash else cloud
    for one in catalog.clouds:
        if slash and one.lower() != cloud.lower():
            continue
        for listed in catalog.regions(one):
            if listed.lower() == name.lower():
                return one, listed
    raise UnknownNameError("region with prices", name, catalog.regions())


def data_bytes(text: str | None, model: "JobModel", epoch_samples: float | None, *, needed: bool) -> float | None:
    """Bytes of the data set: as given, or the bytes read per sample times the samples of an epoch."""
    from stallwise.units import parse_bytes

    if text is not None:
        return parse_bytes(text)
    if epoch_samples is not None and model.bytes_per_sample is not None:
        return model.bytes_per_sample * epoch_samples
    if needed:
        raise InputError("The size of the data set is not known: give --dataset-size with --data-in.")
    return None


def machines(texts: Sequence[str], catalog: "Catalog") -> "dict[str, MachineRecord]":
    """Machine records by instance type."""
    from stallwise.hardware.machine import read_machine

    records = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals:
            raise InputError(f"--machine-of takes INSTANCE=FILE, like p4d.24xlarge=machine.json, not {text!r}.")
        instance, record = catalog.instance(name), read_machine(Path(path))
        drivers = {gpu for host in record.hosts for gpu in host.gpus}
        measured_on = {gpu.name for gpu in map(catalog.gpu_of_driver_name, drivers) if gpu is not None}
        if measured_on and instance.gpu.name not in measured_on:
            raise InputError(
                f"{path} was measured on {', '.join(sorted(measured_on))}; {name} has {instance.gpu.name}."
            )
        records[instance.name] = record
    return records


def spot_terms(
    job: "Analysis",
    mean_life: str | None,
    lifetimes: str | None,
    start: "FleetStart",
    checkpoint: str | None,
    parameters: float | None,
) -> "SpotTerms":
    """Lifetimes and what a loss costs, as `stallwise spot plan` takes them from the same run."""
    from stallwise.cloud.request import SpotTerms
    from stallwise.spot.lifetimes.models import Exponential

    if (mean_life is None) == (lifetimes is None):
        raise InputError(
            "How long do spot machines live? A price does not say. Give --mean-life 12h, or --lifetimes (an event log, "
            "or GPU/REGION of a published table; see stallwise spot fit published)."
        )
    size = None if parameters is None else f"{12 * parameters:.0f}B"
    option = "--checkpoint-time 30s"
    save_s, assumptions = spot_inputs.save_time(
        spot_inputs.measured(job), checkpoint, size, time_option=option, size_option=option
    )
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
        provision_s=start.provision_s,
        restart_s=start.startup_s,
        assumptions=tuple(assumptions),
        plan_arguments=("--mean-life", mean_life) if mean_life is not None else ("--lifetimes", lifetimes or ""),
    )


def seconds(text: str | None) -> float | None:
    """`12h`; None stays None."""
    from stallwise.units import parse_seconds

    return None if text is None else parse_seconds(text)


def share(text: str) -> float:
    """A fraction written as `90%` or `0.9`."""
    from stallwise.units import parse_share

    return parse_share(text)


def count(text: str | None) -> float | None:
    """`25.6M`, `7B` or a number."""
    if text is None:
        return None
    scales = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
    scale = scales.get(text[-1:].lower(), 1.0)
    try:
        number = float(text[:-1] if scale > 1 else text) * scale
    except ValueError:
        number = 0.0
    if not 0 < number < 1e16:
        raise InputError(f"{text!r} is not a number of parameters like 25.6M.")
    return number
