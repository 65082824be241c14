"""The local back end: machines are processes on this computer, with the prices, boots and lives of a market.

Each machine is a supervisor in a session of its own (`_machine.py`), which runs the command and ends all that the
command has started. It is a machine for the manager's purposes: it costs, it boots, it gets notice and goes, and it
does not care whether a manager lives. Cores, memory and network are not apart.
"""

import contextlib
import fcntl
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stallwise.elastic.protocol import MACHINE
from stallwise.errors import InputError
from stallwise.fleet._backend import BackendError, MachineOrder, Market, ReportedMachine, WallClock
from stallwise.fleet.market import MarketTrace
from stallwise.inputs import read_bytes
from stallwise.run.atomic import replace_file

TOKEN_VARIABLE = "STALLWISE_FLEET"  # noqa: S105 - a mark, found by whoever looks for what is left of a fleet
_SUPERVISOR = Path(__file__).with_name("_machine.py")
_SPAWN_S = 60.0


class _CloudFile(msgspec.Struct, frozen=True):
    """`cloud.json`: the clock and the market."""

    origin_s: float
    speed: float
    market: MarketTrace


class _MachineFile(msgspec.Struct, frozen=True, kw_only=True):
    """`machine.json`: what was ordered, and the life that the market gives it."""

    name: str
    token: str
    market: Market
    ordered_s: float
    ready_s: float
    ends_s: float | None
    grace_s: float
    place: int


class LocalCloud:
    """A cloud in a folder. Whoever opens the folder sees the same machines and the same time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        try:
            self._about = msgspec.json.decode(read_bytes(folder / "cloud.json"), type=_CloudFile)
        except FileNotFoundError:
            raise InputError(f"There is no local cloud in {folder}. Check the path.") from None
        except (OSError, msgspec.DecodeError) as error:
            raise InputError(f"{folder / 'cloud.json'} cannot be read ({error}).") from None

    @classmethod
    def make(cls, folder: Path, market: MarketTrace, speed: float = 1.0) -> "LocalCloud":
        """Open the cloud of a folder; a new one begins its time now."""
        (folder / "machines").mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (folder / "cloud.json").exists():
            about = _CloudFile(origin_s=time.time(), speed=speed, market=market)
            replace_file(folder / "cloud.json", msgspec.json.encode(about), mode=0o600)
        return cls(folder)

    @property
    def clock(self) -> WallClock:
        return WallClock(self._about.origin_s, self._about.speed)

    def start(self, order: MachineOrder) -> None:
        """Start a machine; the second call for a name starts its process only if the first one did not get so far."""
        folder = self._folder / "machines" / order.name
        with self._locked():
            if (folder / "machine.json").exists():
                if self._read(folder).token != order.token:
                    raise BackendError(f"A machine of another fleet has the name {order.name}.", "name-taken")
                if (folder / "began").exists() or (folder / "ended.json").exists() or (folder / "stop").exists():
                    return
            else:
                life = self._life(order)
                folder.mkdir(exist_ok=True, mode=0o700)
                replace_file(folder / "machine.json", msgspec.json.encode(life), mode=0o600)
        environment = {**os.environ, **dict(order.environment)}
        environment |= {TOKEN_VARIABLE: order.token, MACHINE: order.name}
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(_SUPERVISOR), str(folder), *order.command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=_SPAWN_S,
            check=False,
        )
        if done.returncode:
            raise BackendError(f"The process of the machine {order.name} did not start (code {done.returncode}).")

    def machines(self, token: str) -> list[ReportedMachine]:
        return [one for folder, life in self._lives() if life.token == token for one in [self._report(folder, life)]]

    def stop(self, key: str) -> None:
        folder = self._folder / "machines" / key
        if not folder.is_dir():
            return
        (folder / "stop").touch(mode=0o600)
        life = self._read(folder)
        if self._report(folder, life).state == "pending" and not (folder / "began").exists():
            # Its process was never started, and now never runs: `stop` is there before `began`.
            self._note_end(folder, "stopped")

    def usd_per_h(self, market: Market) -> float:
        return self._about.market.usd_per_h(market, self.clock.now_s())

    def output(self, name: str) -> Path:
        """The file with what the command of a machine printed."""
        return self._folder / "machines" / name / "out.txt"

    def _life(self, order: MachineOrder) -> _MachineFile:
        """The life of a new machine from the market; BackendError where there is no machine to be had."""
        market, now_s = self._about.market, self.clock.now_s()
        place, ends_s = -1, math.inf
        if order.market == "spot":
            taken = [life.place for folder, life in self._lives() if self._report(folder, life).state != "ended"]
            free = market.free_place(now_s, taken)
            if free is None:
                raise BackendError("There is no spot machine to be had now.", "no-capacity")
            place, ends_s = free, market.end_s(free, now_s)
        return _MachineFile(
            name=order.name,
            token=order.token,
            market=order.market,
            ordered_s=now_s,
            ready_s=now_s + market.boot_of(order.name),
            ends_s=ends_s if math.isfinite(ends_s) else None,
            grace_s=market.grace_s,
            place=place,
        )

    def _lives(self) -> Iterator[tuple[Path, _MachineFile]]:
        for folder in sorted((self._folder / "machines").iterdir()):
            if (folder / "machine.json").exists():
                yield folder, self._read(folder)

    def _read(self, folder: Path) -> _MachineFile:
        try:
            return msgspec.json.decode(read_bytes(folder / "machine.json"), type=_MachineFile)
        except (OSError, msgspec.DecodeError) as error:
            raise BackendError(f"{folder / 'machine.json'} cannot be read ({error}).") from None

    def _report(self, folder: Path, life: _MachineFile) -> ReportedMachine:
        running = _content(folder / "running")
        began = (folder / "began").exists()
        alive = _is_held(folder / "lock")
        end = _content(folder / "ended.json")
        if end is None and began and not alive and not _is_held(folder / "lock"):
            # It was killed from outside. It may also have ended just now and said so meanwhile.
            self._note_end(folder, "lost")
            end = _content(folder / "ended.json")
        ended = None if end is None else json.loads(end)
        now_s = self.clock.now_s()
        code = _content(folder / "exit")
        return ReportedMachine(
            name=life.name,
            token=life.token,
            market=life.market,
            state="ended" if ended else "running" if running is not None else "pending",
            ordered_s=life.ordered_s,
            ready_s=None if running is None else float(running),
            ended_s=None if ended is None else ended["at_s"],
            why="" if ended is None else ended["why"],
            notice=life.ends_s is not None and life.grace_s > 0 and now_s >= life.ends_s - life.grace_s,
            exit_code=None if code is None else int(code),
        )

    def _note_end(self, folder: Path, why: str) -> None:
        """Write down an end that the machine could not; its own word, where it comes first, stays."""
        draft = folder / f".ended.{os.getpid()}.{os.urandom(4).hex()}"
        draft.write_text(json.dumps({"at_s": self.clock.now_s(), "why": why}))
        with contextlib.suppress(FileExistsError):
            os.link(draft, folder / "ended.json")
        draft.unlink()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one order at a time look for a place and take it."""
        with (self._folder / "cloud.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _content(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def _is_held(path: Path) -> bool:
    """Whether a machine's process holds its lock; the kernel lets go of it however the process ends."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
