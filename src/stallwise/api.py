"""The functions of the package for Python sessions: profile, open_run, compare, recommend, simulate.

    job = stallwise.open_run("runs/train")
    job.split, job.bottleneck
    job.on(gpu="H100", gpus=8)
    stallwise.recommend(job, epochs=90, epoch_samples=1_281_167, deadline="12h")

Results are drawn as pages in notebooks: the pages belong to `report/` and are joined to the results here.
"""

import datetime as dt
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stallwise.analysis.analysis import Analysis
from stallwise.analysis.analysis import open_run as _open_run
from stallwise.analysis.compare import Comparison
from stallwise.analysis.prediction import Prediction
from stallwise.cloud.recommend import Recommendation
from stallwise.cluster.sweep.compare import SimulationComparison
from stallwise.errors import InputError, RunError
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.prices import current_date
from stallwise.units import parse_seconds

if TYPE_CHECKING:
    from stallwise.analysis.target import Workers
    from stallwise.report.views.profile_page import ShownProfile

PathLike = str | os.PathLike[str]
Seconds = float | str
"""Seconds, or a quantity like `12h`."""


def open_run(run: PathLike, catalog: Catalog | None = None) -> Analysis:
    """Open a run: split, bottleneck, and predictions by `Analysis.on`.

    Args:
        run: Folder of a run, or a layer file of another tool.
        catalog: GPUs and prices; by default the shipped ones with the user's own beside them.

    Returns:
        The analysis. It is computed on first use, and safe to share between threads.

    Raises:
        RunError: There is no run, or it was written by a newer Stallwise.
        InputError: The file cannot be read as layers.

    Examples:
        >>> import stallwise
        >>> job = stallwise.open_run("examples/runs/slow-data")
        >>> job.bottleneck.binds
        'prep'
        >>> round(job.split.prep.s, 3)
        0.231
    """
    return _open_run(Path(run), catalog)


def open_profile(run: PathLike) -> "ShownProfile":
    """Open a run as a page: the report as a value that a notebook draws.

    Args:
        run: Folder of a run.

    Returns:
        The profile. Times are in seconds, memory in bytes.

    Examples:
        >>> import stallwise
        >>> shown = stallwise.open_profile("examples/runs/slow-data")
        >>> shown.verdict.next_step
        'Set num_workers=2 in the DataLoader (now 0).'
        >>> "<article" in shown._repr_html_()
        True
    """
    from stallwise.report.views.profile_page import show

    job = open_run(run)
    return show(job.profile, job.detail)


def profile(
    script: PathLike,
    *arguments: str,
    out: PathLike | None = None,
    nproc_per_node: int | None = None,
    max_time: Seconds = 120.0,
    light: bool = False,
) -> Analysis:
    """Run a training script unmodified and measure where its time goes; `stallwise profile` has all options.

    Args:
        script: The training script.
        arguments: Arguments of the script.
        out: Folder of the run; it must not exist yet.
        nproc_per_node: Processes on this machine, as torchrun's option; None: one, without torchrun.
        max_time: Time to measure at most, in seconds or as a text: `"2min"`.
        light: Observe only: no ablation, no early end.

    Returns:
        The analysis of the run.

    Raises:
        RunError: The job failed, or ended before anything could be measured.

    Examples:
        >>> import stallwise
        >>> job = stallwise.profile("train.py", "--lr", "0.1", max_time="30s")  # doctest: +SKIP
        >>> job.bottleneck.binds  # doctest: +SKIP
        'prep'
    """
    from stallwise.record.launch import Launch, TorchrunOptions, run_profile
    from stallwise.record.rank.environment import RecordSettings

    name = os.fspath(script)
    options = TorchrunOptions(nproc_per_node=None if nproc_per_node is None else str(nproc_per_node))
    folder = out or f"stallwise-runs/{Path(name).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    launch = Launch(
        script=name,
        arguments=tuple(arguments),
        module=False,
        torchrun=options.arguments(),
        world=options.world(),
        node_rank=0,
        run_id=None,
        settings=RecordSettings(folder=os.fspath(folder), light=light, max_s=_seconds(max_time)),
    )
    outcome = run_profile(launch, lambda _: None)
    if outcome.exit_code or outcome.interrupted or outcome.hung:
        why = outcome.manifest.partial_reason or f"it ended with exit code {outcome.exit_code}"
        raise RunError(f"The profile of {name} is not complete: {why} What was measured is in {launch.folder}.")
    return open_run(launch.folder)


def compare(
    before: Analysis | PathLike, after: Analysis | PathLike, *, fail_if_slower: float | None = None
) -> Comparison:
    """Compare two runs phase by phase.

    Args:
        before: The run to compare with, opened or as a folder.
        after: The run in question.
        fail_if_slower: Tolerated slow-down as a fraction of the step: 0.05 is 5 %.

    Returns:
        What changed around the job, and the change of each phase in seconds and as a fraction with 95 % intervals; with
        `fail_if_slower` whether it passes, fails or is inconclusive.

    Examples:
        >>> import stallwise
        >>> compared = stallwise.compare("examples/runs/slow-data", "examples/runs/slow-data-fixed")
        >>> compared.phases[0].phase, compared.phases[0].verdict, round(compared.phases[0].relative.value, 2)
        ('as is', 'faster', -0.79)
    """
    from stallwise.analysis.compare import compare as compare_runs

    return compare_runs(_opened(before).run, _opened(after).run, fail_if_slower=fail_if_slower)


def recommend(
    job: Analysis | PathLike,
    *,
    samples: float | None = None,
    epochs: float | None = None,
    epoch_samples: float | None = None,
    deadline: Seconds | None = None,
    budget_usd: float | None = None,
    clouds: Sequence[str] | None = None,
    gpus: Sequence[str] | None = None,
    instances: Sequence[str] | None = None,
    max_nodes: int = 64,
    global_batch: float | None = None,
    scale_batch: bool = False,
    workers: "Workers" = None,
    today: dt.date | None = None,
) -> Recommendation:
    """Recommend what to rent for a measured job, or to stay; `stallwise recommend` has all options, spot among them.

    Args:
        job: A run, opened or as a folder.
        samples: Samples of the whole job, instead of `epochs`.
        epochs: Epochs of the job.
        epoch_samples: Samples of one epoch; by default as the run recorded them.
        deadline: Time in which the job has to be done, in seconds or as a text: `"12h"`.
        budget_usd: Dollars that it may cost.
        clouds: Only these clouds.
        gpus: Only these GPU models or families.
        instances: Only these instance types.
        max_nodes: Most machines of a fleet.
        global_batch: Samples of a step of all GPUs together; by default each GPU keeps its batch.
        scale_batch: Let the global batch grow beyond 8 times the measured one; where the run measured its gradient
            noise, the samples that a larger batch needs are counted.
        workers: Loader workers per GPU, or `"auto"`; by default as measured, limited by the vCPUs.
        today: The day from which the age of prices is counted.

    Returns:
        The pick (None: nothing meets the limits), what nothing else beats in time and cost, and why others lost. Times
        are in seconds, costs in dollars, with 80 % intervals.

    Raises:
        InputError: The length of the job is not known, or a name is not in the catalog.

    Examples:
        >>> import stallwise
        >>> answer = stallwise.recommend(
        ...     "examples/runs/slow-data-fixed", epochs=60_000, deadline="12h", workers="auto", clouds=["aws", "gcp"]
        ... )
        >>> answer.verdict
        'Rent n1-standard-16+T4x1 in us-central1 (gcp): 2.04 h for $2.24.'
    """
    from stallwise.cloud.recommend import recommend as decide
    from stallwise.cloud.request import RecommendRequest, fleet_start, job_length

    analysis = _opened(job)
    catalog = analysis.catalog
    of_epoch, count = job_length(epochs, epoch_samples, samples, analysis.epoch_samples)
    start = fleet_start()
    request = RecommendRequest(
        samples=of_epoch,
        epochs=count,
        cold_first=samples is None or epoch_samples is not None,
        deadline_s=None if deadline is None else _seconds(deadline),
        budget_usd=budget_usd,
        clouds=None if clouds is None else frozenset(clouds),
        gpus=None if gpus is None else frozenset(name for word in gpus for name in catalog.gpu_names(word)),
        instances=None if instances is None else frozenset(catalog.instance(name).name for name in instances),
        max_nodes=max_nodes,
        global_batch=global_batch,
        scale_batch=scale_batch,
        noise=analysis.noise if scale_batch else None,
        workers=workers,
        provision_s=start.provision_s,
        startup_s=start.startup_s,
        assumptions=start.assumptions,
    )
    return decide(analysis.model(), request, catalog.offers, today or current_date(), analysis.links)


def simulate(
    trace: PathLike,
    cluster: str,
    policies: Sequence[str] = ("fifo", "las"),
    *,
    profiles: Mapping[str, PathLike] | None = None,
    network: str = "released",
) -> SimulationComparison:
    """Simulate a trace of jobs on a cluster under scheduling policies.

    Args:
        trace: File of jobs; the format is known by its header.
        cluster: The cluster: `"racks=2,machines=8,gpus=8"`.
        policies: Names of policies, or Python files with one.
        profiles: Runs by the model that they measured, for the speed of its jobs by placement.
        network: What links carry: a preset, or rates by level (`"rack=10gbit"`).

    Returns:
        For each setting the policies side by side: times in seconds, used and idle GPUs as fractions.

    Raises:
        InputError: A line of the trace, the cluster or a policy cannot be used.

    Examples:
        >>> import pathlib, tempfile, stallwise
        >>> trace = pathlib.Path(tempfile.mkdtemp()) / "jobs.csv"
        >>> rows = [f"j{i},{i * 60},{1 << (i % 3)},{600 + 60 * i}" for i in range(8)]
        >>> _ = trace.write_text("\\n".join(["job_id,submit_s,gpus,duration_s", *rows]))
        >>> compared = stallwise.simulate(trace, "machines=1,gpus=4", ["fifo", "las"])
        >>> [standing.policy for standing in compared.settings[0].standings]
        ['fifo', 'las']
    """
    from stallwise.cluster.sweep.cases import NamedCluster, Sweep
    from stallwise.cluster.sweep.compare import compare_policies
    from stallwise.cluster.sweep.sweep import run_sweep
    from stallwise.cluster.topology import parse_cluster
    from stallwise.cluster.traces import MeasuredSpeeds, read_trace
    from stallwise.cluster.traces.rows import mark_misfits, usable_trace
    from stallwise.cluster.traces.speeds import trace_speeds

    path = Path(trace)
    own = tuple((name, Path(run)) for name, run in (profiles or {}).items())
    measured = MeasuredSpeeds(profiles=None, own=own, network=network)
    jobs, speeds = trace_speeds(read_trace(path, measured), path, measured, None)
    machines = parse_cluster(cluster, 8)
    kept = usable_trace(mark_misfits(jobs, machines.gpus, models=speeds.models), skip_bad=False)
    place = NamedCluster(name=cluster, cluster=machines, speed=speeds.on(machines))
    sweep = Sweep(jobs=kept.jobs, clusters=(place,), policies=tuple(policies))
    return compare_policies(kept, sweep, run_sweep(sweep))


def _opened(job: Analysis | PathLike) -> Analysis:
    return job if isinstance(job, Analysis) else open_run(job)


def _seconds(value: Seconds) -> float:
    seconds = parse_seconds(value) if isinstance(value, str) else float(value)
    if not seconds > 0:
        raise InputError(f"{value!r} is not a time above 0.")
    return seconds


def _html_of_analysis(job: Analysis) -> str:
    from stallwise.report.html import notebook
    from stallwise.report.views.profile_page import draw

    return notebook(draw(job.profile, job.detail))


def _html_of_prediction(prediction: Prediction) -> str:
    from stallwise.report.html import notebook
    from stallwise.report.views.whatif import draw

    return notebook(draw(prediction))


def _html_of_recommendation(recommendation: Recommendation) -> str:
    from stallwise.report.html import notebook
    from stallwise.report.views.recommend import draw

    return notebook(draw(recommendation))


def _html_of_simulation(comparison: SimulationComparison) -> str:
    from stallwise.report.html import notebook
    from stallwise.report.views.simulate import draw

    return notebook(draw(comparison))


def _html_of_comparison(comparison: Comparison) -> str:
    from stallwise.report.html import notebook
    from stallwise.report.views.run import draw_comparison

    return notebook(draw_comparison(comparison))


_PAGES: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (Analysis, _html_of_analysis),
    (Prediction, _html_of_prediction),
    (Comparison, _html_of_comparison),
    (Recommendation, _html_of_recommendation),
    (SimulationComparison, _html_of_simulation),
)
for _result, _page in _PAGES:
    _result._repr_html_ = _page  # type: ignore[attr-defined]
