"""Simulation of jobs on a cluster under a policy, event by event."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stallwise.cluster._outcome import ClusterSeries, Floats, Outcome
from stallwise.cluster.engine._answers import enlarge, order_jobs, tell_speeds
from stallwise.cluster.engine.build import (
    RestartCosts,
    SpeedKinds,
    kinds_of,
    params_of,
    rows_of,
    state_of,
    topology_of,
)
from stallwise.cluster.engine.state import (
    FINISHED,
    N_DONE,
    N_EVENTS,
    N_SERIES,
    NEED_ORDER,
    NEED_ROOM,
    NEED_SPEED,
    NOW_AT,
    PAUSE,
    STUCK,
    GpuTopology,
    LoopState,
    Record,
    Rows,
)
from stallwise.cluster.job import Job, check_jobs
from stallwise.cluster.policies._user import UserOrder
from stallwise.cluster.policies.base import Policy
from stallwise.cluster.speed.base import FullSpeed, Speed, on_its_kind
from stallwise.cluster.topology import Cluster
from stallwise.errors import InputError, StallwiseError

__all__ = ["RestartCosts", "SimulationView", "simulate"]

_EVENTS_BETWEEN_PROGRESS = 5_000
_ORDERS_BETWEEN_PROGRESS = 200


@dataclass(frozen=True, slots=True)
class SimulationView:
    """The simulation between two events, for checks. Arrays are the live ones: read only."""

    time_s: float
    owner: npt.NDArray[np.int64]
    """Job on each GPU, -1 where it is free. Numbers are places in the order of arrival."""
    rows: Rows
    topology: GpuTopology
    jobs: tuple[Job, ...]

    def gpus_of(self, job: int) -> npt.NDArray[np.int64]:
        """Return the GPUs of a running job."""
        start = int(self.rows["offset"][job])
        return self.topology.gang_gpus[start : start + int(self.rows["gang"][job])]


def simulate(
    jobs: Sequence[Job],
    cluster: Cluster,
    policy: Policy,
    *,
    speed: Speed | None = None,
    costs: RestartCosts | None = None,
    contention: bool = False,
    seed: int = 0,
    watch: Callable[[SimulationView], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
    series: bool = True,
) -> Outcome:
    """Run every job to its end. The same arguments give the same outcome to the last bit.

    `contention` slows jobs that use the same link out of a machine or rack. `watch` sees every event and is slow.
    """
    check_jobs(jobs, cluster.gpus)
    model: Speed = speed if speed is not None else FullSpeed()
    if policy.rounds is not None and policy.rounds.serves_deadlines:
        from stallwise.cluster.engine._deadlines import simulate_deadlines

        return simulate_deadlines(
            jobs,
            cluster,
            policy.name,
            policy.rounds,
            speed=model,
            costs=costs or RestartCosts(),
            progress=progress,
        )
    if policy.rounds is not None:
        from stallwise.cluster.engine._rounds import simulate_rounds

        return simulate_rounds(
            jobs,
            cluster,
            policy.name,
            policy.rounds,
            speed=model,
            costs=costs or RestartCosts(),
            contention=contention,
            seed=seed,
            progress=progress,
        )
    _one_kind(cluster, policy)
    model = on_its_kind(model, cluster)
    turn = sorted(range(len(jobs)), key=lambda index: jobs[index].arrival_s)
    ordered = tuple(jobs[index] for index in turn)
    kinds = kinds_of(ordered, model)
    rows = rows_of(ordered, policy, model, kinds)
    run = _Run(
        jobs=ordered,
        cluster=cluster,
        speed=model,
        kinds=kinds,
        params=params_of(policy, costs or RestartCosts(), cluster, model, contention=contention),
        rows=rows,
        topology=topology_of(cluster, int(rows["gang"].sum())),
        state=state_of(rows, cluster, policy, model, kinds, seed=seed, series=series),
        order=None if policy.user is None else policy.user.order(),
    )
    run.to_the_end(watch, progress)
    return run.outcome(jobs, turn, policy.name)


def _one_kind(cluster: Cluster, policy: Policy) -> None:
    if len(set(cluster.kinds)) > 1:
        raise InputError(
            f"{policy.name} takes all GPUs to be alike, but the cluster has {', '.join(dict.fromkeys(cluster.kinds))}. "
            "Take a policy that knows kinds of GPUs (gavel, themis, sia), or a cluster of one kind."
        )


@dataclass(slots=True)
class _Run:
    """One simulation; the Python half of it."""

    jobs: tuple[Job, ...]
    cluster: Cluster
    speed: Speed
    kinds: SpeedKinds
    params: Record
    rows: Rows
    topology: GpuTopology
    state: LoopState
    order: UserOrder | None = None

    def to_the_end(
        self, watch: Callable[[SimulationView], None] | None, progress: Callable[[int, int], None] | None
    ) -> None:
        from stallwise.cluster.engine._loop import run

        steps = 1 if watch is not None else _EVENTS_BETWEEN_PROGRESS if progress is not None else 1 << 62
        code, orders = PAUSE, 0
        while code != FINISHED:
            # A watcher sees the event that needed an answer before the next one happens.
            most = 0 if watch is not None and code in (NEED_SPEED, NEED_ORDER) else steps
            code = run(self.params, self.rows, self.topology, self.state, most)
            self._answer(code)
            if watch is not None and code not in (NEED_SPEED, NEED_ORDER):
                watch(
                    SimulationView(
                        float(self.state.clock[NOW_AT]), self.topology.owner, self.rows, self.topology, self.jobs
                    )
                )
            orders += code == NEED_ORDER
            if progress is not None and (code != NEED_ORDER or orders % _ORDERS_BETWEEN_PROGRESS == 0):
                progress(int(self.state.tally[N_DONE]), len(self.jobs))

    def _answer(self, code: int) -> None:
        """Give the loop what it returned for."""
        if code == NEED_SPEED:
            self.state = tell_speeds(
                self.cluster, self.speed, self.jobs, self.params, self.rows, self.topology, self.state
            )
        elif code == NEED_ORDER and self.order is not None:
            order_jobs(self.order, self.jobs, self.rows, self.topology, self.state)
        elif code == NEED_ROOM:
            self.state = enlarge(self.state)
        elif code == STUCK:
            cause = "Its patience or placement rules can never be met on this cluster."
            if self.order is not None:
                cause = f"decide() of {self.order.policy.label} leaves out every job that would fit."
            raise StallwiseError(
                "The policy starts no waiting job although the cluster is idle at "
                f"{self.state.clock[NOW_AT]:.0f} s. {cause}"
            )

    def outcome(self, jobs: Sequence[Job], turn: list[int], policy: str) -> Outcome:
        back = np.argsort(np.array(turn), kind="stable")
        rows = self.rows
        run_s, over_s = rows["ran"][back], rows["over"][back]
        # A shrunk job runs longer on fewer GPUs: what it lost is counted in seconds of its whole gang.
        held_s = run_s - (rows["thin"] / rows["full"])[back]
        shrunk = bool(self.params["deflate"] < 1)
        return Outcome(
            jobs=tuple(jobs),
            policy=policy,
            cluster_gpus=self.cluster.gpus,
            first_start_s=rows["first"][back],
            finish_s=rows["finish"][back],
            run_s=run_s,
            comm_s=_without_noise(held_s - over_s - rows["work"][back], held_s if shrunk else None),
            overhead_s=over_s,
            preemptions=rows["stops"][back].astype(np.int64),
            migrations=rows["moves"][back].astype(np.int64),
            widest=rows["widest"][back].astype(np.int64),
            series=ClusterSeries.of(self.state.series[: self.state.tally[N_SERIES]]),
            events=int(self.state.tally[N_EVENTS]),
            held_gpu_s=held_s * rows["full"][back] if shrunk else None,
            deflations=rows["shrinks"][back].astype(np.int64) if shrunk else None,
        )


def _without_noise(lost_s: Floats, held_s: Floats | None) -> Floats:
    """Return the time lost; of jobs that changed their gangs without the rounding noise of many sums."""
    if held_s is not None:
        lost_s = np.where(lost_s > 1e-9 * held_s, lost_s, 0.0)
    return np.maximum(0.0, lost_s)
