"""A study: many networks on several links, each with and without exchange, and what their features say of the stall.

Every link (rate and number of processes) is one launch of ranks that run all networks in turn. Samples are kept line by
line, so a study that was stopped goes on where it was; one with other settings in the same folder is refused, and one
that another version measured in another way.
"""

import bisect
import contextlib
import importlib.util
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import msgspec

from stallwise.errors import InputError, MissingFeatureError
from stallwise.model.macro import FEWEST, Features, HeldOut, MacroFit, Seen, evenly, fit_macro, held_out
from stallwise.record.processes import descendants, end_all
from stallwise.record.study_hosts import StudyHost, require_shaping, shape, study_hosts
from stallwise.record.study_samples import Measured
from stallwise.run.atomic import make_folder, write_atomically
from stallwise.units import parse_rate
from stallwise.workload.families import BACKWARD, network

METHOD = 2
"""How networks are measured: the accelerator's constants below and its clock (`study_net`), the links of `study_hosts`.
Counted up with every change to them, as samples of two methods do not belong in one fit. 1 wrote no number."""
AS_IS = "as-is"
SETTINGS_NAME = "settings.json"
SAMPLES_NAME = "samples.jsonl"
ELEMENT_BYTES = 4
S_PER_MAC = 1 / 5e12
"""A GPU that does 10 TFLOP/s in training."""
LEAST_S = 100e-6
"""No layer's forward takes less there: its convolution, normalization and activation are launched one by one."""
_POLL_S = 0.2
_PATIENCE_S = 180.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a study runs."""

    networks: tuple[str, ...]
    rates: tuple[str, ...]
    processes: tuple[int, ...] = (2,)
    scale: int = 8
    """One in so many elements of every tensor is really there, and torch's buckets are as much smaller."""
    batch: int = 16
    rounds: int = 3
    steps: int = 2
    method: int = METHOD

    def __post_init__(self) -> None:
        for name in self.networks:
            network(name)
        for rate in self.rates:
            if rate != AS_IS and not parse_rate(rate) > 0:
                raise InputError(f"--rates takes rates above 0 such as 1gbit, not {rate!r}.")
        if any(count < 2 for count in self.processes):
            raise InputError("A stall of exchange needs at least 2 processes; --processes takes 2, or 2,4.")
        for name in ("scale", "batch", "rounds", "steps"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name} takes a whole number from 1, not {getattr(self, name)}.")

    @property
    def links(self) -> tuple[tuple[str, int], ...]:
        """Every (rate, processes)."""
        return tuple((rate, count) for count in self.processes for rate in self.rates)


FULL = (
    "resnet10", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "nobn_resnet18", "nobn_resnet34",
    "vgg11", "vgg16_bn", "vgg19", "densenet121", "densenet161", "densenet201", "mobilenet_v2",
    "shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "shufflenet_v2_x2_0", "squeezenet1_0", "alexnet",
)  # fmt: skip
QUICK = ("resnet10", "resnet18", "resnet50", "nobn_resnet18", "vgg11", "vgg16", "densenet121", "alexnet")
RATES = ("250mbit", "500mbit", "1gbit")


class _Method(msgspec.Struct, frozen=True):
    """The method in a folder's settings."""

    method: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStudy:
    """One link: what was seen, its fit, and families predicted by fits to the others."""

    rate: str
    processes: int
    seen: tuple[Seen, ...]
    spreads_s: tuple[float, ...]
    fit: MacroFit | None
    """None as long as too few networks are measured."""
    held_out: tuple[HeldOut, ...]
    by_counts: tuple[HeldOut, ...]
    """The same from counts alone: tensors, layers, bytes and the number of buckets, not where in backward they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What a study found."""

    settings: Settings
    links: tuple[LinkStudy, ...]


Told = Callable[[str, int, int], None]
"""(what is measured, networks done, of so many)."""


def run_study(settings: Settings, folder: Path, told: Told) -> Study:
    """Measure what is not there yet, then fit. A KeyboardInterrupt leaves no process and no namespace."""
    _check(settings)
    _claim(settings, folder)
    total = len(settings.networks) * len(settings.links)

    def tell() -> None:
        told("networks", len(read_samples(folder)), total)

    with _interruptible():
        for count in settings.processes:
            missing = {rate: _missing(settings, folder, rate, count) for rate in settings.rates}
            with contextlib.closing(_places(missing, count)) as places:
                for rate, hosts, names in places:
                    _launch(settings, folder, rate, hosts, names, tell)
    return study_of(settings, read_samples(folder))


def study_of(settings: Settings, samples: Sequence[Measured]) -> Study:
    """Fits to samples, link by link."""
    return Study(
        settings=settings,
        links=tuple(_link_study(rate, count, samples, settings) for rate, count in settings.links),
    )


def read_study(folder: Path) -> Study:
    """The study in a folder, complete or not."""
    try:
        settings = _kept_settings(folder)
        samples = read_samples(folder)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        raise InputError(f"{folder} holds no study. Run one: stallwise study -o {folder}.") from None
    return study_of(settings, samples)


def _kept_settings(folder: Path) -> Settings:
    """The settings of a folder's study; an `InputError` where it was measured in another way than today."""
    data = (folder / SETTINGS_NAME).read_bytes()
    method = msgspec.json.decode(data, type=_Method).method
    if method != METHOD:
        raise InputError(
            f"The study in {folder} was measured by {'an earlier' if method < METHOD else 'a later'} version of "
            "Stallwise, in another way. Measure again into another folder with -o, or show it with that version."
        )
    return msgspec.json.decode(data, type=Settings)


def read_samples(folder: Path) -> tuple[Measured, ...]:
    """What was measured so far; a last line that was cut off is not counted."""
    with contextlib.suppress(FileNotFoundError):
        lines = (folder / SAMPLES_NAME).read_bytes().splitlines(keepends=True)
        return tuple(msgspec.json.decode(line, type=Measured) for line in lines if line.endswith(b"\n"))
    return ()


def _link_study(rate: str, processes: int, samples: Sequence[Measured], settings: Settings) -> LinkStudy:
    mine = {s.network: s for s in samples if (s.rate, s.processes) == (rate, processes)}
    seen = tuple(_seen(sample, settings) for sample in mine.values())
    return LinkStudy(
        rate=rate,
        processes=processes,
        seen=seen,
        spreads_s=tuple(sample.spread_s for sample in mine.values()),
        fit=fit_macro(seen) if sum(one.stall_s > 0 for one in seen) >= FEWEST else None,
        held_out=held_out(seen),
        by_counts=held_out(evenly(seen)),
    )


def _seen(sample: Measured, settings: Settings) -> Seen:
    made = network(sample.network)
    return Seen(
        network=sample.network,
        family=made.family,
        features=_features(sample, settings),
        stall_s=max(0.0, sample.shared_s - sample.alone_s),
        step_s=sample.alone_s,
    )


def _features(sample: Measured, settings: Settings) -> Features:
    """Layers end in backward by their work, what else there was shared evenly; a bucket with the last of its layers."""
    made = network(sample.network)
    count = made.layers
    size, tensors = [0] * count, [0] * count
    work_s = [BACKWARD * layer_s for layer_s in made.forward_s(settings.batch * S_PER_MAC, LEAST_S)[::-1]]
    for tensor in made.tensors:
        place = count - 1 - tensor.layer  # in backward
        size[place] += tensor.scaled(settings.scale) * ELEMENT_BYTES
        tensors[place] += 1
    rest_s = max(0.0, sample.backward_s - sum(work_s)) / count
    ends_s = list(itertools.accumulate(work + rest_s for work in work_s))
    held, gathered = list(itertools.accumulate(size)), list(itertools.accumulate(tensors))
    last = [min(bisect.bisect_left(held, end), count - 1) for end in itertools.accumulate(sample.bucket_bytes)]
    return Features(
        tensors=len(made.tensors),
        layers=count,
        bucket_bytes=sample.bucket_bytes,
        bucket_ready=tuple(ends_s[place] / ends_s[-1] for place in last),
        bucket_tensors=tuple(gathered[place] for place in last),
        bucket_layers=tuple(place + 1 for place in last),
        backward_s=sample.backward_s,
    )


def _check(settings: Settings) -> None:
    if len(settings.networks) < FEWEST:
        raise InputError(
            f"A stall is fitted to at least {FEWEST} networks, and --networks names {len(settings.networks)}. Name "
            "more, of several families, so that one can be held out."
        )
    if importlib.util.find_spec("torch") is None:
        raise MissingFeatureError("A study needs PyTorch, which is not installed here: pip install 'stallwise[torch]'")
    if any(rate != AS_IS for rate in settings.rates):
        require_shaping()


def _claim(settings: Settings, folder: Path) -> None:
    make_folder(folder)
    path = folder / SETTINGS_NAME
    if path.exists():
        with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
            if _kept_settings(folder) == settings:
                _drop_cut_off(folder / SAMPLES_NAME)
                return
        raise InputError(f"{folder} holds a study with other settings. Name another folder with -o, or remove it.")
    write_atomically(path, msgspec.json.format(msgspec.json.encode(settings), indent=1) + b"\n")


def _drop_cut_off(path: Path) -> None:
    """What a killed study wrote last and did not end: the next line must not be joined to it."""
    with contextlib.suppress(FileNotFoundError):
        data = path.read_bytes()
        if data and not data.endswith(b"\n"):
            write_atomically(path, data[: data.rfind(b"\n") + 1])


def _missing(settings: Settings, folder: Path, rate: str, processes: int) -> list[str]:
    done = {s.network for s in read_samples(folder) if (s.rate, s.processes) == (rate, processes)}
    return [name for name in settings.networks if name not in done]


def _places(
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
    settings: Settings,
    folder: Path,
    rate: str,
    hosts: Sequence[StudyHost | None],
    names: Sequence[str],
    told: Callable[[], None],
) -> None:
    log, port = folder / "ranks.log", _free_port()
    not_ours = [process.pid for process in descendants()]
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
            _stay_with(ranks, folder, told)
        finally:
            end_all(descendants(besides=not_ours))
            for process in ranks:
                process.wait()
    if any(process.returncode for process in ranks):
        said = log.read_text(errors="replace").strip().splitlines() or ["no reason given"]
        raise InputError(f"The ranks of the study stopped at {rate}: {said[-1][:200]} (all of it: {log})")


def _command(settings: Settings, folder: Path, rate: str, host: StudyHost | None, names: Sequence[str]) -> list[str]:
    words = [sys.executable, "-m", "stallwise.record.study_rank", "--networks", ",".join(names), "--rate", rate]
    words += ["--scale", str(settings.scale), "--s-per-mac", str(settings.batch * S_PER_MAC)]
    words += ["--least-s", str(LEAST_S)]
    words += ["--rounds", str(settings.rounds), "--steps", str(settings.steps)]
    words += ["--out", str((folder / SAMPLES_NAME).resolve()), "--parent", str(os.getpid())]
    return words if host is None else host.command(*words)


def _environment(rank: int, count: int, first: StudyHost | None, port: int) -> dict[str, str]:
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
    address = "127.0.0.1" if first is None else first.address
    return os.environ | place | {"MASTER_ADDR": address, "MASTER_PORT": str(port)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _stay_with(ranks: Sequence["subprocess.Popen[bytes]"], folder: Path, told: Callable[[], None]) -> None:
    seen, since_s = len(read_samples(folder)), time.monotonic()
    told()
    while any(process.poll() is None for process in ranks):
        time.sleep(_POLL_S)
        if any(process.poll() for process in ranks):
            return  # one failed; the others would wait for it
        done = len(read_samples(folder))
        if done != seen:
            seen, since_s = done, time.monotonic()
        told()
        if time.monotonic() - since_s > _PATIENCE_S:
            raise InputError(
                f"No network was done for {_PATIENCE_S:.0f} s. Take a faster link, a larger --scale, or fewer networks."
            )


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends a study as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
