"""Policies by name, and what single seams do."""

from dataclasses import replace

import pytest

from stallwise.cluster._outcome import Outcome
from stallwise.cluster.job import Job
from stallwise.cluster.policies._tuner import AutoTuner, Tuning
from stallwise.cluster.policies.base import Order, Patience, Placement, Policy, Preemption
from stallwise.cluster.policies.catalog import CLAIRVOYANT, POLICIES, ROUND_POLICIES, policy_named
from stallwise.cluster.simulator import RestartCosts, simulate
from stallwise.cluster.speed.base import Penalty
from stallwise.cluster.topology import Cluster
from stallwise.errors import InputError, UnknownNameError

RACKS = Cluster.counts(gpus=4, machines=2, racks=2)
SLOW = Penalty((1.0, 0.5, 0.1))


def run(rows: list[tuple[float, int, float]], policy: Policy | str, cluster: Cluster = RACKS, **options) -> Outcome:
    jobs = [Job(id=str(i), arrival_s=at, gpus=gpus, work_s=work) for i, (at, gpus, work) in enumerate(rows)]
    return simulate(jobs, cluster, policy_named(policy) if isinstance(policy, str) else policy, **options)


def test_names_and_options() -> None:
    assert {"sjf", "srtf", "srsf"} == CLAIRVOYANT & POLICIES.keys()
    assert {"edf", "gavel", "gavel-unaware", "pollux", "sia"} == ROUND_POLICIES.keys() - CLAIRVOYANT
    assert all(make().name == name for name, make in POLICIES.items())
    manual = policy_named("dally-manual:rack=3,net=9,lease=600")
    assert (manual.patience.machine_leases, manual.patience.rack_leases, manual.preemption.lease_s) == (3, 9, 600)
    with pytest.raises(UnknownNameError, match="tiresias"):
        policy_named("tiresia")
    with pytest.raises(UnknownNameError, match="policy option"):
        policy_named("las:lea=3")
    with pytest.raises(InputError, match="needs a number"):
        policy_named("las:lease=long")
    with pytest.raises(InputError, match="must not be negative"):
        policy_named("las:lease=-1")
    with pytest.raises(InputError, match="above 0"):
        policy_named("las:lease=0")


def test_strict_lets_nobody_overtake() -> None:
    rows = [(0.0, 12, 100.0), (1.0, 8, 10.0), (2.0, 4, 10.0)]
    assert run(rows, "fifo").first_start_s.tolist() == [0, 100, 100]
    assert run(rows, "fifo-skip").first_start_s.tolist() == [0, 100, 2]


def test_shortest_first_preempts_and_pays() -> None:
    rows = [(0.0, 16, 100.0), (10.0, 16, 5.0)]
    assert run(rows, "srtf").finish_s.tolist() == [105, 15]
    paid = run(rows, "srtf", costs=RestartCosts(checkpoint_s_per_gpu=1.0, restart_s=30.0))
    # 16 s until the GPUs are free; then 5 s of work; the long job loads for 30 s.
    assert paid.finish_s.tolist() == [10 + 16 + 5 + 30 + 90, 10 + 16 + 5]
    assert paid.preemptions.tolist() == [1, 0]
    assert paid.overhead_s.tolist() == [30, 16]


def test_patience_waits_for_a_machine_then_takes_a_rack() -> None:
    # Two and two GPUs are free in one rack; a full machine frees at 5,000 s.
    rows = [(0.0, 4, 5000.0), (0.0, 4, 5000.0), (0.0, 2, 9000.0), (0.0, 2, 9000.0), (1.0, 4, 100.0)]
    first = Policy(name="", placement=Placement(fit="first"))
    spread = [(0.0, 4, 9000.0), (0.0, 3, 9000.0), (0.0, 3, 9000.0), (0.0, 3, 9000.0), (1.0, 3, 100.0)]
    assert run(spread, first, speed=SLOW).widest.tolist()[-1] == 2
    timed = Policy(name="", patience=Patience(kind="timers", machine_leases=0.5, rack_leases=1.0))
    assert run(rows, timed, speed=SLOW).first_start_s[-1] <= 5000
    wakes = Policy(name="", patience=Patience(kind="timers", machine_leases=0.25, rack_leases=0.5, wakes=True))
    outcome = run(spread, wakes, speed=SLOW)
    assert outcome.first_start_s[-1] == 1 + 0.5 * 3600
    assert outcome.finish_s[-1] == pytest.approx(1 + 1800 + 100 / 0.1)


def test_full_consolidation_never_crosses_a_machine_it_fits_in() -> None:
    rows = [(float(i), 3, 500.0) for i in range(12)]
    assert run(rows, "dally-full", speed=SLOW).widest.max() == 0
    assert run(rows, "dally-no-wait", speed=SLOW).widest.max() > 0


def test_a_lease_ends_on_time_but_for_chunks_of_iterations() -> None:
    # A chunk of 1,000 iterations takes the first job 10,000 s: the second waits for a lease of an hour, or for it.
    jobs = [
        Job(id="long", arrival_s=0.0, gpus=16, work_s=30_000.0, iteration_s=10.0),
        Job(id="short", arrival_s=1.0, gpus=16, work_s=100.0, iteration_s=0.1),
    ]
    assert policy_named("dally").preemption.chunk_iterations == 0
    assert simulate(jobs, RACKS, policy_named("dally")).first_start_s.tolist() == [0, 3600]
    assert simulate(jobs, RACKS, policy_named("dally:chunk=1000")).first_start_s.tolist() == [0, 10_000]


def test_a_job_moves_to_a_tighter_place() -> None:
    policy = Policy(
        name="", preemption=Preemption(kind="lease", lease_s=60, renew=True, migrate=True, migrate_gain=1.5)
    )
    rows = [(0.0, 3, 200.0), (0.0, 3, 9000.0), (0.0, 3, 9000.0), (0.0, 3, 9000.0), (1.0, 4, 4000.0)]
    outcome = run(rows, policy, speed=SLOW)
    assert outcome.migrations.tolist() == [0, 0, 0, 0, 1]
    # Across racks at a tenth of full speed until the first machine is free, at full speed from then on.
    assert outcome.finish_s[-1] == pytest.approx(200 + 4000 - 0.1 * 199, abs=61)


def test_packing_shares_gpus_at_less_speed() -> None:
    jobs = [Job(id=str(i), arrival_s=0.0, gpus=16, work_s=90.0, gpu_utilisation=0.4) for i in range(2)]
    outcome = simulate(jobs, RACKS, policy_named("gandiva"))
    assert outcome.finish_s.tolist() == pytest.approx([100.0, 100.0])
    busy = [Job(id=str(i), arrival_s=0.0, gpus=16, work_s=90.0, gpu_utilisation=0.6) for i in range(2)]
    assert simulate(busy, RACKS, policy_named("gandiva")).finish_s.max() == pytest.approx(180.0)


def test_time_slices_leave_no_gang_behind() -> None:
    """Small jobs keep coming, out of step; one that wants every GPU still gets its turns, minute by minute."""
    rows = [(0.0, 16, 600.0), *((1.0 + 7.0 * i, 1 + i % 5, 500.0) for i in range(300))]
    outcome = run(rows, "gandiva")
    # It wants ten turns, those that came with it nine: it ends about when they do, though it needs the whole cluster.
    assert outcome.finish_s[0] < 1.25 * outcome.finish_s[1:11].mean()
    late = [(3.0, 16, 600.0), *((0.0 + 7.0 * i, 1 + i % 5, 500.0) for i in range(300))]
    started = run(late, "gandiva")
    assert started.first_start_s[0] <= 3 + 2 * 60
    staggered = replace(policy_named("gandiva"), preemption=replace(policy_named("gandiva").preemption, aligned=False))
    assert run(late, staggered).first_start_s[0] > 10 * started.first_start_s[0]


def test_slices_end_for_all_at_once() -> None:
    rows = [(13.0, 16, 100.0), (29.5, 8, 100.0), (29.5, 8, 100.0), (31.0, 16, 100.0)]
    outcome = run(rows, "gandiva")
    assert outcome.first_start_s.tolist()[1:3] == [60.0, 60.0]
    assert outcome.first_start_s[3] == 120.0


def test_contention_slows_jobs_on_one_link() -> None:
    rows = [(0.0, 6, 100.0), (0.0, 6, 100.0)]
    cluster = Cluster.counts(gpus=4, machines=3)
    alone = run(rows, "fifo", cluster, speed=SLOW).finish_s.max()
    assert run(rows, "fifo", cluster, speed=SLOW, contention=True).finish_s.max() > alone


def test_queues_demote_and_promote() -> None:
    order = Order(by="queues", limits_gpu_s=(160.0,))
    policy = Policy(name="", order=order, preemption=Preemption(kind="now"))
    rows = [(0.0, 16, 100.0), (50.0, 16, 8.0), (51.0, 16, 5.0)]
    # The first is in the second queue since 10 s; new ones come before it.
    assert run(rows, policy).finish_s.tolist() == [113, 58, 63]
    flood = [(0.0, 16, 100.0), *((50.0 + 9 * i, 16, 9.0) for i in range(40))]
    kept = replace(policy, order=replace(order, promote=1.0))
    assert run(flood, kept).finish_s[0] < run(flood, policy).finish_s[0]


def test_the_tuner_in_the_loop_is_the_tuner() -> None:
    from stallwise.cluster.engine._queue import MACHINE, RACK, estimate, note_wait
    from stallwise.cluster.engine.build import kinds_of, params_of, rows_of, state_of
    from stallwise.cluster.speed.base import FullSpeed

    jobs = [Job(id="a", arrival_s=0.0, gpus=4, work_s=1.0)]
    policy, speed = policy_named("dally"), FullSpeed()
    rules = params_of(policy, RestartCosts(), RACKS, speed, contention=False)
    kinds = kinds_of(jobs, speed)
    desk = state_of(rows_of(jobs, policy, speed, kinds), RACKS, policy, speed, kinds, seed=0, series=False)
    tuner = AutoTuner(Tuning())
    for step in range(200):
        wait = (step * 7919 % 23) / 2.0
        for level, tier in (("machine", MACHINE), ("rack", RACK)):
            tuner.add(level, step * 0.9, wait + tier)
            note_wait(rules, desk, 0, tier, step * 0.9 * 3600.0, wait + tier)
    assert estimate(rules, desk, 0, MACHINE) == pytest.approx(tuner.estimate(tuner.machine))
    assert estimate(rules, desk, 0, RACK) == pytest.approx(tuner.estimate(tuner.rack))
