"""The door of policies in rounds: fixed gangs, or jobs that grow and shrink."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from stallwise.cluster.job import Job
from stallwise.cluster.outcome import Outcome
from stallwise.cluster.policy import Rounds
from stallwise.cluster.rules import Costs
from stallwise.cluster.speed import Speed
from stallwise.cluster.topology import Cluster
from stallwise.errors import InputError

if TYPE_CHECKING:
    from stallwise.cluster.rounds.elastic import Rule


def simulate_rounds(
    jobs: Sequence[Job],
    cluster: Cluster,
    policy: str,
    rounds: Rounds,
    speed: Speed,
    costs: Costs,
    contention: bool,
    seed: int,
    progress: Callable[[int, int], None] | None,
) -> Outcome:
    """Every job to its end. The same arguments give the same outcome."""
    if rounds.elastic:
        from stallwise.cluster.rounds.elastic import simulate_elastic

        if rounds.by != "configurations" and len(set(cluster.kinds)) > 1:
            raise InputError(f"{policy} takes all GPUs to be alike. Take sia, or a cluster of one kind of GPU.")
        rule = _elastic(rounds)
        return simulate_elastic(
            jobs, cluster, policy, rounds.round_s, rule=rule, speed=speed, costs=costs, progress=progress
        )
    from stallwise.cluster.rounds.gangs import simulate_gangs

    return simulate_gangs(
        jobs, cluster, policy, rounds, speed=speed, costs=costs, contention=contention, seed=seed, progress=progress
    )


def _elastic(rounds: Rounds) -> "Rule":
    from stallwise.cluster.rounds.optimus import Optimus
    from stallwise.cluster.rounds.pollux import Pollux
    from stallwise.cluster.rounds.sia import Sia

    if rounds.by == "marginal-gain":
        return Optimus()
    made = Pollux if rounds.by == "goodput" else Sia
    return made(power=rounds.power, restart_s=rounds.restart_s)
