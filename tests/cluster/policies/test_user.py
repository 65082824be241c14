"""Policies that a user writes in Python: the same answers as built-in ones, sweeps, a real cluster, errors."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from stallwise.cluster._outcome import Outcome
from stallwise.cluster.job import Job
from stallwise.cluster.live import Scheduler
from stallwise.cluster.policies import ClusterView, JobView, policy_named, policy_of
from stallwise.cluster.simulator import RestartCosts, simulate
from stallwise.cluster.speed.base import Penalty
from stallwise.cluster.sweep.cases import Sweep, simulate_cases
from stallwise.cluster.sweep.local import LocalEngine
from stallwise.cluster.sweep.results import ResultsFile
from stallwise.cluster.sweep.sweep import run_sweep
from stallwise.cluster.topology import Cluster
from stallwise.errors import InputError, StallwiseError
from tests.cluster.laws import Watcher, check_outcome
from tests.cluster.sweep.sweeps import contents, made_sweep
from tests.cluster.test_simulator import traces

EXAMPLE = Path(__file__).parents[3] / "examples/my_policy.py"
RACKS = Cluster.counts(gpus=4, machines=2, racks=2)
COSTS = RestartCosts(checkpoint_s_per_gpu=1.0, restart_s=20.0)


class Fifo:
    strict = True

    def decide(self, view: ClusterView) -> list[JobView]:
        return sorted(view.jobs, key=lambda job: job.arrival_s)


class Las:
    preemptive = True
    lease_s = 3600
    fit = "first"

    def decide(self, view: ClusterView) -> list[JobView]:
        return sorted(view.jobs, key=lambda job: job.attained_gpu_s)


class Srtf:
    preemptive = True
    clairvoyant = True

    def decide(self, view: ClusterView) -> list[str]:
        return [job.id for job in sorted(view.jobs, key=lambda job: job.remaining_s or 0.0)]


def drawn(seed: int, count: int = 80) -> list[Job]:
    rng = np.random.default_rng(seed)
    return [
        Job(
            id=f"j{i}",
            arrival_s=float(rng.uniform(0, 9e4)),
            gpus=int(rng.choice([1, 2, 4, 8, 16])),
            work_s=float(rng.uniform(10, 2e4)),
        )
        for i in range(count)
    ]


def alike(first: Outcome, second: Outcome) -> None:
    for name in ("first_start_s", "finish_s", "run_s", "comm_s", "overhead_s", "preemptions", "migrations", "widest"):
        assert (getattr(first, name) == getattr(second, name)).all(), name
    assert first.events == second.events
    assert (first.series.busy_gpus == second.series.busy_gpus).all()


@pytest.mark.parametrize(("name", "mine"), [("fifo", Fifo), ("las", Las), ("srtf", Srtf)])
@pytest.mark.parametrize("contention", [False, True])
def test_who_orders_alike_answers_alike(name: str, mine: type, contention: bool) -> None:
    for seed in range(3):
        jobs, speed = drawn(seed), Penalty((1.0, 0.8, 0.5))
        options = {"speed": speed, "costs": COSTS, "contention": contention, "seed": seed}
        alike(simulate(jobs, RACKS, policy_named(name), **options), simulate(jobs, RACKS, policy_of(mine), **options))


class Moody:
    """Any order, and any jobs left out, but never all of them."""

    preemptive = True

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)

    def decide(self, view: ClusterView) -> list[str]:
        ids = [str(job_id) for job_id in self.random.permutation([job.id for job in view.jobs])]
        return ids[: int(self.random.integers(1, len(ids) + 1))]


@pytest.mark.parametrize(
    "declared", [{}, {"lease_s": 60.0}, {"interval_s": 300.0}, {"strict": True, "fit": "emptiest"}]
)
@settings(max_examples=12)
@given(traces())
def test_laws_hold_whatever_is_returned(declared: dict[str, object], trace: tuple[Cluster, list[Job]]) -> None:
    cluster, jobs = trace
    watcher = Watcher()
    mine = type("Mine", (Moody,), declared)
    outcome = simulate(jobs, cluster, policy_of(mine), speed=Penalty((1.0, 0.8, 0.4, 0.1)), costs=COSTS, watch=watcher)
    check_outcome(outcome, watcher)


def test_jobs_left_out_do_not_run() -> None:
    class Pause:
        preemptive = True

        def decide(self, view: ClusterView) -> list[JobView]:
            return [job for job in view.jobs if job.id != "a" or view.now_s >= 120]

    jobs = [Job(id="a", arrival_s=0, gpus=1, work_s=100), Job(id="b", arrival_s=60, gpus=1, work_s=10)]
    outcome = simulate(jobs, Cluster.counts(gpus=2), policy_of(Pause))
    assert outcome.first_start_s.tolist() == [130, 60], "asked again every minute while nothing runs"

    class Stop(Pause):
        def decide(self, view: ClusterView) -> list[JobView]:
            return [job for job in view.jobs if job.id != "a" or not 60 <= view.now_s < 70]

    outcome = simulate(jobs, Cluster.counts(gpus=2), policy_of(Stop))
    assert outcome.preemptions.tolist() == [1, 0], "stopped although both would fit"
    assert outcome.finish_s.tolist() == [110, 70]

    class Keep(Stop):
        preemptive = False

    assert simulate(jobs, Cluster.counts(gpus=2), policy_of(Keep)).finish_s.tolist() == [100, 70]


def test_an_interval_brings_decisions_between_events() -> None:
    times: list[float] = []

    class Watch:
        interval_s = 100

        def decide(self, view: ClusterView) -> list[JobView]:
            times.append(view.now_s)
            return list(view.jobs)

    jobs = [Job(id="a", arrival_s=0, gpus=1, work_s=250), Job(id="b", arrival_s=10, gpus=1, work_s=10)]
    outcome = simulate(jobs, Cluster.counts(gpus=1), policy_of(Watch))
    assert times == [0, 10, 100, 200, 250]
    assert outcome.preemptions.tolist() == [0, 0]


def test_what_a_policy_sees() -> None:
    views: list[ClusterView] = []

    class Look:
        def decide(self, view: ClusterView) -> tuple[JobView, ...]:
            views.append(view)
            return view.jobs

    jobs = [
        Job(id="a", arrival_s=0, gpus=2, work_s=100, model="net"),
        Job(id="b", arrival_s=30, gpus=4, work_s=10),
        Job(id="c", arrival_s=50, gpus=1, work_s=10),
    ]
    simulate(jobs, Cluster.counts(gpus=4), policy_of(Look))
    view = views[2]
    assert (view.now_s, view.gpus, view.free_gpus) == (50, 4, 2)
    first, second, third = view.jobs
    assert first == JobView(
        id="a",
        gpus=2,
        arrival_s=0,
        running=True,
        run_s=50,
        attained_gpu_s=100,
        waited_s=0,
        model="net",
        remaining_s=None,
    )
    assert (second.id, second.running, second.waited_s, third.id) == ("b", False, 20, "c")
    simulate(jobs, Cluster.counts(gpus=4), policy_of(type("Clear", (Look,), {"clairvoyant": True})))
    assert next(job.remaining_s for job in views[-1].jobs if not job.running) == 10


def test_the_same_on_a_real_cluster() -> None:
    """Told of the same events, the scheduler outside the simulator decides as inside it."""
    actions: dict[str, list[tuple[str, str]]] = {}
    for name, policy in (("srtf", policy_named("srtf")), ("mine", policy_of(Srtf))):
        scheduler = Scheduler(RACKS, policy)
        log = actions.setdefault(name, [])
        for at, job in enumerate(drawn(5, 40)):
            scheduler.submit(job, 10.0 * at)
            log += [(action.what, action.job) for action in scheduler.decide(10.0 * at)]
        for at, job in enumerate(drawn(5, 40)):
            scheduler.finish(job.id, 500.0 + at)
            log += [(action.what, action.job) for action in scheduler.decide(500.0 + at)]
    assert actions["mine"] == actions["srtf"]
    assert {what for what, _ in actions["mine"]} == {"start", "stop"}


FILE = """
class Mine:
    preemptive = True
    lease_s = 1800

    def decide(self, view):
        return sorted(view.jobs, key=lambda job: job.attained_gpu_s)
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    numbers = itertools.count()

    def put(text: str) -> str:
        path = tmp_path / f"policy{next(numbers)}.py"
        path.write_text(text)
        return str(path)

    return put


def test_a_file_in_a_sweep_of_processes(write: Callable[[str], str], tmp_path: Path) -> None:
    sweep = made_sweep(policies=("fifo", write(FILE), f"{write(FILE)}:Mine"))
    single = [made.result for made in simulate_cases(sweep, list(enumerate(sweep.cases())), lambda *_: None)]
    for path in tmp_path.glob("policy*.py"):
        path.unlink()  # workers, here and on other machines, have its text with the sweep
    results = run_sweep(sweep, engine=LocalEngine(2))
    assert contents(results) == contents(single)
    by_policy = {name: [r.metrics for r in single if r.case.policy == name] for name in sweep.policies}
    assert by_policy[sweep.policies[1]] == by_policy[sweep.policies[2]] != by_policy["fifo"]


def test_results_of_a_changed_file_are_not_taken_for_its_own(write: Callable[[str], str], tmp_path: Path) -> None:
    path, results = write(FILE), tmp_path / "sweep.jsonl"
    simulated: list[int] = []

    def counting(sweep: Sweep, cases, progress):  # type: ignore[no-untyped-def]
        simulated.append(len(cases))
        return simulate_cases(sweep, cases, progress)

    for text, expected in ((FILE, 16), (FILE, 0), (FILE.replace("1800", "600"), 8), (FILE, 0)):
        Path(path).write_text(text)
        with ResultsFile(results) as journal:
            run_sweep(made_sweep(policies=("fifo", path)), engine=counting, journal=journal)
        assert simulated[-1] == expected


def test_the_example_serves_small_jobs_first() -> None:
    mine = policy_named(str(EXAMPLE))
    assert not mine.clairvoyant
    jobs = drawn(1)
    small = np.array([job.gpus <= 2 for job in jobs])
    assert (
        simulate(jobs, RACKS, mine).jct_s[small].mean()
        < simulate(jobs, RACKS, policy_named("fifo")).jct_s[small].mean()
    )
    assert len(EXAMPLE.read_text().splitlines()) <= 36


def test_the_example_serves_a_large_job_that_has_waited_and_does_not_stop_it_again() -> None:
    """`waited_s` is 0 as soon as a job runs: a policy that forgets who was owed stops the job it has just started."""
    small = [replace(drawn(1)[0], id=f"small {n}", arrival_s=600.0 * n, gpus=1, work_s=3000.0) for n in range(100)]
    large = replace(small[0], id="large", arrival_s=6001.0, gpus=2, work_s=7200.0)  # when all four GPUs are taken
    jobs = sorted([*small, large], key=lambda job: job.arrival_s)
    outcome = simulate(jobs, Cluster.counts(gpus=4, machines=1, racks=1), policy_named(str(EXAMPLE)))
    place = jobs.index(large)
    assert outcome.preemptions[place] == 0
    assert 6 * 3600 <= outcome.first_start_s[place] - large.arrival_s <= 6 * 3600 + 3000


@pytest.mark.parametrize(
    ("name", "declared"), [("preempt", "preemptive"), ("lease", "lease_s"), ("Clairvoyant", "clairvoyant")]
)
def test_a_misspelt_declaration_is_refused(write: Callable[[str], str], name: str, declared: str) -> None:
    path = write(f"class Mine:\n    {name} = True\n    limit = 3\n    def decide(self, view): return view.jobs\n")
    with pytest.raises(InputError, match=f"{name} is nothing that a policy declares. Did you mean {declared}?"):
        policy_named(path)


def test_work_that_is_left_needs_a_declaration(write: Callable[[str], str]) -> None:
    path = write("class Mine:\n    def decide(self, view): return sorted(view.jobs, key=lambda j: 2 * j.remaining_s)\n")
    with pytest.raises(InputError, match="unless the class declares clairvoyant = True"):
        simulate(drawn(1, 5), RACKS, policy_named(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class Mine(:\n", r"policy0.py is not Python: line 1"),
        (
            "import nothing_of_that_name\n",
            r"cannot be imported: it failed at .*policy0.py, line 1.*ModuleNotFound",
        ),
        ("x = 1\n", r"has no class with a method decide\(self, view\)"),
        (
            f"{FILE}\nclass Other(Mine):\n    pass\n",
            r"several policies: Mine, Other. Name one, as in .*0.py:Mine",
        ),
        ("class Mine:\n    lease_s = 'long'\n    def decide(self, view): ...\n", "lease_s must be a number of seconds"),
        ("class Mine:\n    lease_s = 60\n    def decide(self, view): ...\n", "declare preemptive = True"),
        ("class Mine:\n    strict = 1\n    def decide(self, view): ...\n", "strict must be True or False, not 1"),
        (
            "class Mine:\n    fit = 'tight'\n    def decide(self, view): ...\n",
            "fit must be first, best, random or emptiest",
        ),
    ],
)
def test_a_file_that_is_no_policy(write: Callable[[str], str], text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        policy_named(write(text))


def test_a_file_or_class_that_is_not_there(write: Callable[[str], str]) -> None:
    with pytest.raises(InputError, match=r"nowhere/mine.py cannot be read: No such file"):
        policy_named("nowhere/mine.py")
    with pytest.raises(InputError, match=r"has no class Min with a method decide\(self, view\). Did you mean Mine\?"):
        policy_named(f"{write(FILE)}:Min")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return view.job", r"failed at .*policy0.py, line 4, in decide: AttributeError: .*no attribute 'job'"),
        ("return (1 / 0 for job in view.jobs)", r"policy0.py, line 4, in <genexpr>: ZeroDivisionError"),
        ("pass", r"must return jobs of the view, or their ids, in order of priority; it returned a NoneType"),
        ("return 'a'", "it returned a str"),
        ("return [3]", "it returned 3 among them"),
        ("return ['gone']", r"it returned 'gone', which neither waits nor runs at 0 s"),
        ("return [*view.jobs, *view.jobs]", "it returned 'a' twice"),
    ],
)
def test_what_decide_does_wrong_is_told_with_its_line(write: Callable[[str], str], body: str, message: str) -> None:
    path = write(f"\nclass Mine:\n    def decide(self, view):\n        {body}\n")
    with pytest.raises(InputError, match=message):
        simulate([Job(id="a", arrival_s=0, gpus=1, work_s=1)], RACKS, policy_named(path))


def test_a_policy_that_never_starts_anybody(write: Callable[[str], str]) -> None:
    path = write("class Mine:\n    def decide(self, view):\n        return []\n")
    with pytest.raises(StallwiseError, match=r"is idle at \d+ s. decide\(\) of .*policy0.py leaves out every job"):
        simulate([Job(id="a", arrival_s=0, gpus=1, work_s=1)], RACKS, policy_named(path))


def test_every_simulation_has_an_object_of_its_own() -> None:
    class Counting:
        def __init__(self) -> None:
            self.calls = 0

        def decide(self, view: ClusterView) -> list[JobView]:
            self.calls += 1
            return sorted(view.jobs, key=lambda job: (job.gpus * self.calls) % 7)

    jobs, policy = drawn(2), policy_of(Counting)
    alike(simulate(jobs, RACKS, policy), simulate(jobs, RACKS, policy))
    assert replace(policy, name="x").user is policy.user
