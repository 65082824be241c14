"""A study: many networks on several links, each with and without exchange, and what their features say of the stall.

Every link (rate and number of processes) is one launch of ranks that run all networks in turn. Samples are kept line by
line, so a study that was stopped continues where it was; one with other settings in the same folder is refused, and one
that another version measured in another way.
"""

import bisect
import contextlib
import importlib.util
import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stallwise.errors import InputError, missing_torch
from stallwise.inputs import read_bytes
from stallwise.machine._study_hosts import StudyHost, require_shaping, shape, study_hosts
from stallwise.model.exchange.macro import (
    FEWEST,
    HeldOutPrediction,
    MacroFeatures,
    MacroFit,
    MeasuredStall,
    evenly,
    fit_macro,
    held_out,
)
from stallwise.record.processes import descendants, end_all, interruptible
from stallwise.run.atomic import make_folder, write_atomically
from stallwise.units import parse_rate
from stallwise.workload.families import BACKWARD, network


class StudySample(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a network's steps without and with exchange."""

    rate: str
    processes: int
    network: str
    alone_s: float
    backward_s: float
    shared_s: float
    spread_s: float
    """Spread of the stall over rounds: the largest less the smallest."""
    bucket_bytes: tuple[int, ...]
    """Bucket sizes as DDP built them, in the order they were sent."""


METHOD = 2
"""How networks are measured: the constants below, the clock of `study_rank`, the links of `study_hosts`.
Incremented with every change, as samples of two methods do not belong in one fit. Method 1 wrote no number."""
AS_IS = "as-is"
SETTINGS_NAME = "settings.json"
SAMPLES_NAME = "samples.jsonl"
ELEMENT_BYTES = 4
S_PER_MAC = 1 / 5e12
"""Seconds per multiply-accumulate of a GPU that does 10 TFLOP/s in training."""
LEAST_S = 100e-6
"""Least time of a layer's forward there: its convolution, normalization and activation are launched one by one."""
_POLL_S = 0.2
_PATIENCE_S = 180.0


class StudySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Networks, links and precision of a study."""

    networks: tuple[str, ...]
    rates: tuple[str, ...]
    processes: tuple[int, ...] = (2,)
    scale: int = 8
    """Every tensor has one in `scale` of its elements, and torch's buckets are smaller by the same factor."""
    batch: int = 16
    rounds: int = 3
    steps: int = 2
    method: int = METHOD

    def __post_init__(self) -> None:
        for name in self.networks:
            network(name)
        for rate in self.rates:
            if rate != AS_IS and not parse_rate(rate) > 0:
                raise InputError(f"A rate must be above 0, such as 1gbit, not {rate!r}.", fields=("rates",))
        if any(count < 2 for count in self.processes):
            raise InputError("A stall of exchange needs at least 2 processes, as in 2 or 2,4.", fields=("processes",))
        for name in ("scale", "batch", "rounds", "steps"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be a whole number from 1, not {getattr(self, name)}.", fields=(name,))

    @property
    def links(self) -> tuple[tuple[str, int], ...]:
        """Every pair of a rate and a number of processes."""
        return tuple((rate, count) for count in self.processes for rate in self.rates)


FULL = (
    "resnet10", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "nobn_resnet18", "nobn_resnet34",
    "vgg11", "vgg16_bn", "vgg19", "densenet121", "densenet161", "densenet201", "mobilenet_v2",
    "shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "shufflenet_v2_x2_0", "squeezenet1_0", "alexnet",
)  # fmt: skip
QUICK = ("resnet10", "resnet18", "resnet50", "nobn_resnet18", "vgg11", "vgg16", "densenet121", "alexnet")
RATES = ("250mbit", "500mbit", "1gbit")


class _Method(msgspec.Struct, frozen=True):
    """The one field of a folder's settings that every version can read."""

    method: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStudy:
    """One link: measured stalls, their fit, and families predicted by fits to the other families."""

    rate: str
    processes: int
    seen: tuple[MeasuredStall, ...]
    spreads_s: tuple[float, ...]
    fit: MacroFit | None
    """None as long as too few networks are measured."""
    held_out: tuple[HeldOutPrediction, ...]
    by_counts: tuple[HeldOutPrediction, ...]
    """The same from counts alone: tensors, layers, bytes and the number of buckets, not where in backward they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The settings of a study and the results of each of its links."""

    settings: StudySettings
    links: tuple[LinkStudy, ...]


StudyListener = Callable[[str, int, int], None]
"""Called with (what is measured, networks done, networks in all)."""


def run_study(settings: StudySettings, folder: Path, on_progress: StudyListener) -> Study:
    """Measure what is missing, then fit. A KeyboardInterrupt leaves no process and no namespace."""
    _check(settings)
    _claim(settings, folder)
    total = len(settings.networks) * len(settings.links)

    def report() -> None:
        on_progress("networks", len(read_samples(folder)), total)

    with interruptible():
        for count in settings.processes:
            missing = {rate: _missing(settings, folder, rate, count) for rate in settings.rates}
            with contextlib.closing(_shaped_links(missing, count)) as links:
                for rate, hosts, names in links:
                    _launch(settings, folder, rate, hosts, names, report)
    return study_of(settings, read_samples(folder))


def study_of(settings: StudySettings, samples: Sequence[StudySample]) -> Study:
    """Fit the samples, link by link."""
    return Study(
        settings=settings,
        links=tuple(_link_study(rate, count, samples, settings) for rate, count in settings.links),
    )


def read_study(folder: Path) -> Study:
    """The study in a folder, complete or not."""
    try:
        settings = _read_settings(folder)
        samples = read_samples(folder)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InputError(f"{folder} holds no study. Run one: stallwise study -o {folder}.") from None
    return study_of(settings, samples)


def _read_settings(folder: Path) -> StudySettings:
    """The settings of a folder's study; an `InputError` where this version measures in another way."""
    data = read_bytes(folder / SETTINGS_NAME)
    method = msgspec.json.decode(data, type=_Method).method
    if method != METHOD:
        raise InputError(
            f"The study in {folder} was measured by {'an earlier' if method < METHOD else 'a later'} version of "
            "Stallwise, in another way. Measure again into another folder, or show it with that version.",
            fields=("out",),
        )
    return msgspec.json.decode(data, type=StudySettings)


def read_samples(folder: Path) -> tuple[StudySample, ...]:
    """The samples so far; a last line that was cut off is not counted."""
    with contextlib.suppress(FileNotFoundError):
        lines = read_bytes(folder / SAMPLES_NAME).splitlines(keepends=True)
        return tuple(msgspec.json.decode(line, type=StudySample) for line in lines if line.endswith(b"\n"))
    return ()


def _link_study(rate: str, processes: int, samples: Sequence[StudySample], settings: StudySettings) -> LinkStudy:
    by_network = {s.network: s for s in samples if (s.rate, s.processes) == (rate, processes)}
    stalls = tuple(_measured_stall(sample, settings) for sample in by_network.values())
    return LinkStudy(
        rate=rate,
        processes=processes,
        seen=stalls,
        spreads_s=tuple(sample.spread_s for sample in by_network.values()),
        fit=fit_macro(stalls) if sum(one.stall_s > 0 for one in stalls) >= FEWEST else None,
        held_out=held_out(stalls),
        by_counts=held_out(evenly(stalls)),
    )


def _measured_stall(sample: StudySample, settings: StudySettings) -> MeasuredStall:
    trained = network(sample.network)
    return MeasuredStall(
        network=sample.network,
        family=trained.family,
        features=_features(sample, settings),
        stall_s=max(0.0, sample.shared_s - sample.alone_s),
        step_s=sample.alone_s,
    )


def _features(sample: StudySample, settings: StudySettings) -> MacroFeatures:
    """Features of a sample.

    Layers end in backward by their work, the rest of the time is shared evenly; a bucket ends with the last of its
    layers.
    """
    trained = network(sample.network)
    count = trained.layers
    size, tensors = [0] * count, [0] * count
    work_s = [BACKWARD * layer_s for layer_s in trained.forward_s(settings.batch * S_PER_MAC, LEAST_S)[::-1]]
    for tensor in trained.tensors:
        position = count - 1 - tensor.layer  # in backward
        size[position] += tensor.scaled(settings.scale) * ELEMENT_BYTES
        tensors[position] += 1
    rest_s = max(0.0, sample.backward_s - sum(work_s)) / count
    ends_s = list(itertools.accumulate(work + rest_s for work in work_s))
    total_bytes, total_tensors = list(itertools.accumulate(size)), list(itertools.accumulate(tensors))
    last = [min(bisect.bisect_left(total_bytes, end), count - 1) for end in itertools.accumulate(sample.bucket_bytes)]
    return MacroFeatures(
        tensors=len(trained.tensors),
        layers=count,
        bucket_bytes=sample.bucket_bytes,
        bucket_ready=tuple(ends_s[position] / ends_s[-1] for position in last),
        bucket_tensors=tuple(total_tensors[position] for position in last),
        bucket_layers=tuple(position + 1 for position in last),
        backward_s=sample.backward_s,
    )


def _check(settings: StudySettings) -> None:
    if len(settings.networks) < FEWEST:
        raise InputError(
            f"A stall is fitted to at least {FEWEST} networks, and the study has {len(settings.networks)}. Name "
            "more, of several families, so that one can be held out.",
            fields=("networks",),
        )
    if importlib.util.find_spec("torch") is None:
        raise missing_torch("A study")
    if any(rate != AS_IS for rate in settings.rates):
        require_shaping()


def _claim(settings: StudySettings, folder: Path) -> None:
    make_folder(folder)
    path = folder / SETTINGS_NAME
    if path.exists():
        with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
            if _read_settings(folder) == settings:
                _drop_cut_off(folder / SAMPLES_NAME)
                return
        raise InputError(
            f"{folder} holds a study with other settings. Name another folder, or remove it.", fields=("out",)
        )
    write_atomically(path, msgspec.json.format(msgspec.json.encode(settings), indent=1) + b"\n")


def _drop_cut_off(path: Path) -> None:
    """Remove an incomplete last line that a killed study left: the next one must not be joined to it."""
    with contextlib.suppress(FileNotFoundError):
        data = path.read_bytes()
        if data and not data.endswith(b"\n"):
            write_atomically(path, data[: data.rfind(b"\n") + 1])


def _missing(settings: StudySettings, folder: Path, rate: str, processes: int) -> list[str]:
    done = {s.network for s in read_samples(folder) if (s.rate, s.processes) == (rate, processes)}
    return [name for name in settings.networks if name not in done]


def _shaped_links(
    missing: dict[str, list[str]], count: int
) -> Generator[tuple[str, tuple[StudyHost | None, ...], list[str]], None, None]:
    """Each rate with networks to measure, on hosts whose links have it; None is this machine as it is."""
    if missing.get(AS_IS):
        yield AS_IS, (None,) * count, missing[AS_IS]
    shaped = {rate: names for rate, names in missing.items() if rate != AS_IS and names}
    if not shaped:
        return
    with study_hosts(count) as hosts:
        for rate in sorted(shaped, key=parse_rate, reverse=True):
            # The fastest first: it is done soonest, so a study that is stopped has most to show.
            shape(hosts, parse_rate(rate))
            yield rate, hosts, shaped[rate]


def _launch(
    settings: StudySettings,
    folder: Path,
    rate: str,
    hosts: Sequence[StudyHost | None],
    names: Sequence[str],
    report: Callable[[], None],
) -> None:
    log, port = folder / "ranks.log", _free_port()
    earlier = [process.pid for process in descendants()]
    ranks: list[subprocess.Popen[bytes]] = []
    with log.open("wb") as errors:
        try:
            for rank, host in enumerate(hosts):
                process = subprocess.Popen(
                    _command(settings, folder, rate, host, names),
                    stdin=subprocess.DEVNULL,
                    stdout=errors,
                    stderr=errors,
                    env=_environment(rank, len(hosts), hosts[0], port),
                    start_new_session=True,
                )
                ranks.append(process)
            _wait_for(ranks, folder, report)
        finally:
            end_all(descendants(besides=earlier))
            for process in ranks:
                process.wait()
    if any(process.returncode for process in ranks):
        lines = log.read_text(errors="replace").strip().splitlines() or ["no reason given"]
        raise InputError(f"The ranks of the study stopped at {rate}: {lines[-1][:200]} (all of it: {log})")


def _command(
    settings: StudySettings, folder: Path, rate: str, host: StudyHost | None, names: Sequence[str]
) -> list[str]:
    arguments = [sys.executable, "-m", "stallwise.machine.study_rank", "--networks", ",".join(names), "--rate", rate]
    arguments += ["--scale", str(settings.scale), "--s-per-mac", str(settings.batch * S_PER_MAC)]
    arguments += ["--least-s", str(LEAST_S)]
    arguments += ["--rounds", str(settings.rounds), "--steps", str(settings.steps)]
    arguments += ["--out", str((folder / SAMPLES_NAME).resolve()), "--parent", str(os.getpid())]
    return arguments if host is None else host.command(*arguments)


def _environment(rank: int, count: int, first: StudyHost | None, port: int) -> dict[str, str]:
    variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
    address = "127.0.0.1" if first is None else first.address
    return os.environ | variables | {"MASTER_ADDR": address, "MASTER_PORT": str(port)}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


def _wait_for(ranks: Sequence["subprocess.Popen[bytes]"], folder: Path, report: Callable[[], None]) -> None:
    counted, since_s = len(read_samples(folder)), time.monotonic()
    report()
    while any(process.poll() is None for process in ranks):
        time.sleep(_POLL_S)
        if any(process.poll() for process in ranks):
            return  # one failed; the others would wait for it
        done = len(read_samples(folder))
        if done != counted:
            counted, since_s = done, time.monotonic()
        report()
        if time.monotonic() - since_s > _PATIENCE_S:
            raise InputError(
                f"No network was done for {_PATIENCE_S:.0f} s. Take a faster link, a larger scale, or fewer networks.",
                fields=("rates", "scale", "networks"),
            )
