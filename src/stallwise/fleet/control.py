"""A fleet in a folder: its database, its secret, its checkpoints, and the local cloud on which it runs."""

import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stallwise.errors import InputError
from stallwise.fleet._backend import BackendError, BoundedBackend
from stallwise.fleet._local import LocalCloud
from stallwise.fleet.jobs import ElasticJob
from stallwise.fleet.ledger import FleetReceipt, enter, receipt
from stallwise.fleet.manager import FleetManager, FleetOutcome, FleetStatus, ManagerTiming
from stallwise.fleet.market import MarketTrace
from stallwise.fleet.plan import FleetPlan
from stallwise.fleet.state import FILE, FleetEvent, FleetState, manager_lock
from stallwise.sentences import read_sentence, sentence_document

_LOCK_WAIT_S = 5.0


@dataclass
class FleetFolder:
    """A fleet that was made; `open_fleet` finds it again."""

    folder: Path
    state: FleetState
    plan: FleetPlan
    script: tuple[str, ...]
    cloud: LocalCloud
    port: int

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def closed(self) -> bool:
        """Whether it has ended and nothing of it is left."""
        return bool(self.state.fact("closed"))

    def manager(
        self, timing: ManagerTiming | None = None, report: Callable[[FleetStatus], None] | None = None
    ) -> FleetManager:
        """A manager for it; hold `manager_lock` meanwhile."""
        speed = self.cloud.clock.speed
        # A look every two seconds of real time, however fast the cloud's clock is.
        timing = timing or ManagerTiming(poll_s=2.0 * speed, silent_s=300.0 * speed, stop_limit_s=120.0 * speed)
        job = ElasticJob(
            plan=self.plan,
            script=self.script,
            checkpoints=self.checkpoints.absolute(),
            port=self.port,
            secret=_secret(self.folder),
        )
        return FleetManager(self.plan, self.state, BoundedBackend(self.cloud), job, timing, report)

    def receipt(self) -> FleetReceipt:
        """What it was planned to take and what it took."""
        return receipt(self.plan, self.state)

    def running(self) -> int:
        """Machines that the cloud has of this fleet now."""
        return sum(one.state != "ended" for one in self.cloud.machines(self.state.token))

    def events(self) -> list[FleetEvent]:
        return [event for _, event in self.state.events()]

    def close(self) -> None:
        self.state.close()


def make_fleet(
    folder: Path, plan: FleetPlan, script: tuple[str, ...], market: MarketTrace, speed: float = 1.0
) -> FleetFolder:
    """Make a fleet in a new folder; no machine is started yet."""
    if (folder / FILE).exists():
        raise InputError(f"There is a fleet in {folder} already. Name another folder.", fields=("folder",))
    state = FleetState.open(folder, new=True)
    cloud = LocalCloud.make(folder / "cloud", market, speed)
    (folder / "checkpoints").mkdir(exist_ok=True)
    _secret(folder)
    port = _free_port()
    with state.transaction():
        state.set_facts(plan=msgspec.to_builtins(plan, enc_hook=sentence_document), script=list(script), port=port)
    return FleetFolder(folder, state, plan, script, cloud, port)


def open_fleet(folder: Path) -> FleetFolder:
    """Open a fleet that was made before."""
    state = FleetState.open(folder)
    text = state.fact("plan")
    if text is None:
        state.close()
        raise InputError(f"The fleet in {folder} was not made to the end. Remove the folder and start again.")
    plan = msgspec.convert(text, FleetPlan, dec_hook=read_sentence)
    return FleetFolder(
        folder, state, plan, tuple(state.fact("script")), LocalCloud(folder / "cloud"), int(state.fact("port"))
    )


def is_fleet(folder: Path) -> bool:
    """Whether a fleet was made in this folder."""
    return (folder / FILE).exists()


def run_fleet(
    fleet: FleetFolder, ledger: Path | None, report: Callable[[FleetStatus], None] | None = None
) -> FleetReceipt:
    """Manage a fleet until it is settled, from wherever it is; its receipt goes into the ledger.

    At KeyboardInterrupt all machines are stopped first; at a second one they are left as they are.
    """
    with manager_lock(fleet.folder, _LOCK_WAIT_S) as held:
        if not held:
            raise InputError(f"Another process manages the fleet in {fleet.folder}.", fields=("folder",))
        manager = fleet.manager(report=report)
        try:
            manager.run()
        except KeyboardInterrupt:
            manager.end("down", "interrupted")
            manager.run()
        result = fleet.receipt()
        if ledger is not None:
            enter(result, ledger)
        return result


def resize(fleet: FleetFolder, machines: int) -> None:
    """Ask for another number of machines; the manager follows at its next look."""
    if not 1 <= machines <= fleet.plan.machines * 2:
        raise InputError(
            f"This job takes 1 to {2 * fleet.plan.machines} machines, not {machines}.", fields=("machines",)
        )
    if fleet.closed:
        raise InputError(f"The fleet in {fleet.folder} has ended.")
    with fleet.state.transaction():
        fleet.state.set_facts(size=machines)


def take_down(
    fleet: FleetFolder, ledger: Path | None, report: Callable[[FleetStatus], None] | None = None
) -> FleetOutcome | None:
    """End a fleet. Its manager does it where there is one (None); else this process does, and sweeps what is left."""
    with fleet.state.transaction():
        fleet.state.set_facts(request="down")
    with manager_lock(fleet.folder) as held:
        if not held:
            return None
        if fleet.closed:
            sweep(fleet)
        manager = fleet.manager(report=report)
        outcome = manager.run()
        if ledger is not None:
            enter(fleet.receipt(), ledger)
        return outcome


def sweep(fleet: FleetFolder) -> int:
    """Stop whatever of a fleet still runs, whether it was written down or not; returns how many machines."""
    count = 0
    for one in fleet.cloud.machines(fleet.state.token):
        if one.state != "ended":
            try:
                fleet.cloud.stop(one.key)
            except BackendError as error:
                raise InputError(f"The machine {one.name} could not be stopped: {error}") from None
            count += 1
    return count


def _secret(folder: Path) -> str:
    """The job secret of a fleet, made at first use."""
    path = folder / "secret"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    with os.fdopen(handle, "w") as file:
        text = secrets.token_hex(32)
        file.write(text)
    return text


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
