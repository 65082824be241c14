"""Fixed gangs in rounds: shares, auctions, places, and what users are told."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from stallwise.cli.simulate import policies
from stallwise.cluster._outcome import Outcome
from stallwise.cluster.job import Job
from stallwise.cluster.live import Scheduler
from stallwise.cluster.policies._gangs import GangPlacer, GangQueue, kinds_of
from stallwise.cluster.policies._gavel import Aim, Gavel
from stallwise.cluster.policies.catalog import GROUPS, KNOWS, POLICIES, ROUND_POLICIES, policy_named
from stallwise.cluster.simulator import RestartCosts, simulate
from stallwise.cluster.speed._tables import GavelThroughputs
from stallwise.cluster.speed.base import FullSpeed, Penalty, Shape
from stallwise.cluster.topology import Cluster, parse_cluster
from stallwise.errors import InputError, UnknownNameError

GANGS = GROUPS["rounds"]
ONE = Cluster.counts(gpus=1)
MIXED = parse_cluster("kinds=v100:1x2+k80:2x2")


def jobs_of(rows: list[tuple[float, int, float]]) -> list[Job]:
    return [Job(id=str(i), arrival_s=at, gpus=gpus, work_s=work) for i, (at, gpus, work) in enumerate(rows)]


def drawn(seed: int, count: int = 60) -> list[Job]:
    rng = np.random.default_rng(seed)
    rows = [
        (float(at), int(gpus), float(work))
        for at, gpus, work in zip(
            np.sort(rng.uniform(0, 20_000, count)), rng.choice([1, 2, 4, 8], count), rng.uniform(60, 9_000, count),
            strict=True,
        )
    ]  # fmt: skip
    return jobs_of(rows)


class Kinds(FullSpeed):
    """v100 is twice as fast as k80 for even jobs, four times for odd ones."""

    compares_kinds = True

    def on_kind(self, job: Job, kind: str) -> float:
        return 1.0 if kind == "v100" else (0.5, 0.25)[int(job.id) % 2]


@pytest.mark.parametrize("policy", GANGS)
@pytest.mark.parametrize("seed", range(3))
def test_work_is_done_once_and_no_gpu_twice(policy: str, seed: int) -> None:
    jobs = drawn(seed)
    cluster = Cluster.counts(gpus=4, machines=2, racks=2)
    outcome = simulate(jobs, cluster, policy_named(policy), speed=Penalty((1.0, 0.8, 0.5)), contention=True, seed=seed)
    assert (outcome.first_start_s >= outcome.arrival_s).all()
    assert (outcome.finish_s >= outcome.first_start_s + outcome.work_s - 1e-6).all()
    assert (outcome.run_s >= outcome.work_s - 1e-6).all()
    assert outcome.series.busy_gpus.max() <= cluster.gpus
    # GPU-seconds of the series, where GPUs of ended jobs idle until the round is over, hold those of the jobs.
    area = (np.diff(outcome.series.time_s) * outcome.series.busy_gpus[:-1]).sum()
    assert area >= (outcome.run_s * outcome.gpus).sum() - 1e-3
    again = simulate(jobs, cluster, policy_named(policy), speed=Penalty((1.0, 0.8, 0.5)), contention=True, seed=seed)
    assert again.finish_s.tolist() == outcome.finish_s.tolist()


@pytest.mark.parametrize("policy", ["gavel", "gavel-ftf", "gavel-makespan"])
def test_shares_are_realised(policy: str) -> None:
    # Two alike on one GPU: each has half the time, and both end within a round of each other.
    outcome = run([(0.0, 1, 36_000.0), (0.0, 1, 36_000.0)], policy)
    assert abs(float(np.diff(outcome.finish_s)[0])) <= 360 + 1e-6
    assert outcome.makespan_s == pytest.approx(72_000)
    assert outcome.preemptions.sum() > 100


def run(rows: list[tuple[float, int, float]], policy: str, cluster: Cluster = ONE, **options) -> Outcome:
    return simulate(jobs_of(rows), cluster, policy_named(policy), **options)


def test_makespan_serves_long_jobs_first_and_max_min_does_not() -> None:
    rows = [(0.0, 1, 3_600.0), (0.0, 1, 36_000.0)]
    assert run(rows, "gavel").finish_s[0] == pytest.approx(7_200, abs=721)
    assert run(rows, "gavel-makespan").finish_s[0] > 30_000


@pytest.mark.parametrize(("aim", "without"), [("makespan", (1.75, 1.75)), ("finish-time", (2.5, 1.5))])
def test_a_job_that_is_nearly_done_hides_nobody(aim: Aim, without: tuple[float, float]) -> None:
    # Without the last job the throughputs of the others are 1 + 3p and 2 - p, alike or as those with a share of each
    # kind, 5 : 3. It counts as having a round left, a twentieth of theirs, and takes about as much from them.
    left = np.array([7_200.0, 7_200.0, 1e-9])
    rate = np.array([[4.0, 1.0], [2.0, 1.0], [1.0, 1.0]])
    queue = GangQueue(
        gang=np.ones(3, dtype=np.int64), arrival=np.zeros(3), work=np.full(3, 7_200.0), left=left,
        attained=np.zeros(3), rate=rate, gpus=np.ones(2, dtype=np.int64), active=np.arange(3),
    )  # fmt: skip
    rule = Gavel(aim, queue, 360.0)
    rule.choose(queue)
    assert ((rule.target * rate).sum(axis=1)[:2] > 0.9 * np.array(without)).all()


def test_themis_serves_who_is_worst_off() -> None:
    # A job of a minute has waited longest for its size, so it goes before the long ones that came before it.
    rows = [(0.0, 1, 36_000.0), (0.0, 1, 36_000.0), (100.0, 1, 60.0)]
    assert run(rows, "themis").finish_s[2] <= 360 + 60


def test_a_change_of_gpus_costs() -> None:
    rows = [(0.0, 1, 3_600.0), (0.0, 1, 3_600.0)]
    paid = run(rows, "gavel", costs=RestartCosts(restart_s=10.0, first_start_s=5.0, checkpoint_s_per_gpu=1.0))
    assert paid.overhead_s.sum() == pytest.approx(2 * 5 + 11 * paid.preemptions.sum())
    assert paid.makespan_s == pytest.approx(7_200 + paid.overhead_s.sum(), abs=1)


def test_jobs_run_where_they_are_relatively_quickest() -> None:
    # The odd job loses most on k80. With p of the v100 for it and half the rest for each other, 1/4 + 3p/4 = 1/2 +
    # (1 - p)/4 of full speed: p = 1/2, and all end after 7,200 / 0.625 s.
    jobs = jobs_of([(0.0, 2, 7_200.0) for _ in range(3)])
    known = simulate(jobs, MIXED, policy_named("gavel-makespan"), speed=Kinds())
    unknown = simulate(jobs, MIXED, policy_named("gavel-unaware"), speed=Kinds())
    assert known.finish_s == pytest.approx([11_520.0] * 3, abs=360)
    assert known.makespan_s < unknown.makespan_s


@pytest.mark.parametrize("policy", GANGS)
def test_the_order_in_which_kinds_are_named_decides_nothing(policy: str) -> None:
    jobs = [replace(job, gpus=min(job.gpus, 4)) for job in drawn(0, 30)]
    found = [
        simulate(jobs, parse_cluster(f"kinds={kinds}"), policy_named(policy), speed=Kinds()).finish_s.tolist()
        for kinds in ("v100:1x2+k80:2x2", "k80:2x2+v100:1x2")
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("policy", ["fifo", "patient", "gavel", "themis"])
def test_one_kind_with_a_name(policy: str) -> None:
    table = GavelThroughputs(
        {("m", 1): 4.0, ("n", 1): 4.0}, {}, kinds={"v100": {("m", 1): 4.0, ("n", 1): 4.0}, "k80": {("m", 1): 1.0}}
    )
    job = Job(id="0", arrival_s=0.0, gpus=1, work_s=60.0, model="m")
    ends = [
        simulate([job], parse_cluster(f"kinds={kind}:1x1"), policy_named(policy), speed=table).finish_s[0]
        for kind in ("v100", "k80")
    ]
    assert ends == pytest.approx([60.0, 240.0])
    # It does not fit a K80, which is why it was not measured there.
    with pytest.raises(InputError, match="measured on"):
        simulate([replace(job, model="n")], parse_cluster("kinds=k80:1x1"), policy_named(policy), speed=table)
    # Nothing was measured: the name changes nothing.
    plain = [simulate(drawn(1), cluster, policy_named(policy)).finish_s.tolist()
             for cluster in (parse_cluster("kinds=v100:2x4"), parse_cluster("machines=2,gpus=4"))]  # fmt: skip
    assert plain[0] == plain[1]


def test_nobody_waits_for_a_round_nobody_is_in() -> None:
    outcome = run([(50.0, 1, 30.0), (1_000.0, 1, 30.0)], "gavel")
    assert outcome.finish_s.tolist() == [80.0, 1_030.0]


@pytest.mark.parametrize("seed", range(5))
def test_places_are_tight_and_apart(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cluster = Cluster.counts(gpus=4, machines=4, racks=2)
    floor = GangPlacer(cluster, kinds_of(cluster)[1])
    gangs = rng.choice([1, 2, 4, 6, 8], 40).astype(np.int64)
    placed: dict[int, tuple[int, ...]] = {}
    for _ in range(20):
        chosen, free = [], cluster.gpus
        for job in rng.permutation(40):
            if gangs[job] <= free:
                chosen.append((int(job), 0))
                free -= int(gangs[job])
        placed = floor.place(chosen, gangs, placed)
        assert {job: len(held) for job, held in placed.items()} == {job: int(gangs[job]) for job, _ in chosen}
        assert max(Counter(gpu for held in placed.values() for gpu in held).values()) == 1
        # Whole machines come first and are always found together.
        assert all(floor.width(held)[1] == 2 for job, held in placed.items() if gangs[job] == 8)


def test_a_spread_gang_comes_together_when_there_is_room() -> None:
    cluster = Cluster.counts(gpus=4, machines=2)
    floor = GangPlacer(cluster, kinds_of(cluster)[1])
    gangs = np.array([3, 3, 2])
    first = floor.place([(0, 0), (1, 0), (2, 0)], gangs, {})
    assert floor.width(first[2]) == (1, 2)
    assert floor.width(floor.place([(0, 0), (2, 0)], gangs, first)[2]) == (1, 1)
    assert floor.place([(0, 0), (2, 0)], gangs, first)[0] == first[0]


def test_sharers_count_those_that_cross() -> None:
    cluster = Cluster.counts(gpus=2, machines=2, racks=2)
    floor = GangPlacer(cluster, kinds_of(cluster)[1])
    shared = floor.sharers({0: (0, 2), 1: (1, 4), 2: (6, 7)})
    assert shared == {0: (2, 1), 1: (2, 1), 2: (1, 1)}


def test_kinds_of_a_cluster() -> None:
    assert MIXED.kinds == ("v100",) * 2 + ("k80",) * 4
    assert MIXED.names[0] == ("v100-0", "k80-0", "k80-1")
    for text, said in (("kinds=v100", "not a kind"), ("kinds=a:1x2+a:1x2", "twice"), ("kinds=a:0x2", "not a kind")):
        with pytest.raises(InputError, match=said):
            parse_cluster(text)


def test_what_users_are_told() -> None:
    rows = jobs_of([(0.0, 1, 60.0)])
    with pytest.raises(InputError, match="nothing measured with this trace"):
        simulate(rows, MIXED, policy_named("gavel"))
    with pytest.raises(InputError, match="takes all GPUs to be alike"):
        simulate(rows, MIXED, policy_named("fifo"))
    with pytest.raises(InputError, match="carries none"):
        simulate(rows, ONE, policy_named("sia"))
    with pytest.raises(InputError, match="runs on no kind of GPU here"):
        simulate(jobs_of([(0.0, 5, 60.0)]), MIXED, policy_named("gavel"), speed=Kinds())
    with pytest.raises(InputError, match="only `stallwise simulate` does"):
        Scheduler(ONE, policy_named("themis"))
    for option in ("gavel:lease=3", "gavel:worst=0.5", "gavel:restart=9", "optimus:restart=9", "themis:restart=9"):
        with pytest.raises(UnknownNameError, match="policy option"):
            policy_named(option)
    with pytest.raises(InputError, match="at most 1"):
        policy_named("themis:worst=3")
    assert policy_named("sia:restart=9").rounds == replace(policy_named("sia").rounds, restart_s=9.0)  # type: ignore[type-var]
    assert policy_named("themis:worst=0.5,round=600").rounds == replace(
        policy_named("themis").rounds,
        worst_part=0.5,
        round_s=600.0,  # type: ignore[type-var]
    )


def test_words_for_many_policies() -> None:
    assert policies(["rounds"]) == GANGS
    assert policies(["elastic,gavel:round=600"]) == ("optimus", "pollux", "sia", "gavel:round=600")
    assert KNOWS.keys() == POLICIES.keys() | ROUND_POLICIES.keys()


def test_throughput_by_kind() -> None:
    table = GavelThroughputs({("m", 1): 4.0}, {}, kinds={"v100": {("m", 1): 4.0}, "k80": {("m", 1): 1.0}, "p100": {}})
    job = Job(id="", arrival_s=0.0, gpus=1, work_s=1.0, model="m")
    assert [table.on_kind(job, kind) for kind in ("v100", "k80", "p100")] == [1.0, 0.25, 0.0]
    assert table.rate(job, Shape(1, (1,))) == 1.0
    with pytest.raises(UnknownNameError, match="kind of GPU"):
        table.on_kind(job, "a100")
