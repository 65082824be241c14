"""The published traces as they are: how many jobs each has, and totals that their sources state."""

import math
from pathlib import Path

import numpy as np
import pytest

from stallwise.cluster.job import Job
from stallwise.cluster.traces import MeasuredSpeeds, read_trace
from stallwise.cluster.traces.rhythm import read_rhythm, with_rhythm
from stallwise.errors import InputError


@pytest.fixture(scope="session")
def traces(shared_data: Path) -> Path:
    """The folder of cluster traces."""
    return shared_data / "cluster_traces"


@pytest.mark.parametrize(
    ("name", "format", "jobs"),
    [
        ("dally_sensetime/batch_500.csv", "Dally", 500),
        ("dally_sensetime/poisson_411_1proc_week.csv", "Dally", 411),
        ("dally_sensetime/april1_344.csv", "Dally", 344),
        ("tiresias/480_job.csv", "Tiresias", 480),
        ("tiresias/60_job.csv", "Tiresias", 60),
        ("philly_slices/philly_5000.csv", "Philly slice", 5000),
        ("sia/philly_82k_jobs.csv", "Philly log", 82_247),
        ("themis_philly/processed_data.csv", "Themis Philly", 488),
        ("themis_philly/philly_hyperdrive_workload.csv", "Themis Philly", 4695),
        ("gavel/physical_cluster/minimize_makespan.csv", "Gavel", 100),
        ("gavel/physical_cluster/minimize_makespan.trace", "Gavel", 100),
        ("gavel/msr_seed0/795a4c.csv", "Gavel", 3),
        ("shockwave/900_jobs_dynamic.csv", "Shockwave", 900),
        ("alibaba_gpu_v2023/openb_pod_list_default.csv", "Alibaba GPU 2023", 6203),
    ],
)
def test_every_job_is_read(traces: Path, name: str, format: str, jobs: int) -> None:
    found = read_trace(traces / name)
    assert (found.format, len(found.jobs), found.problems) == (format, jobs, ())
    arrivals = [job.arrival_s for job in found.jobs]
    assert arrivals == sorted(arrivals)


def _gpu_hours(jobs: tuple[Job, ...]) -> float:
    return math.fsum(job.service_s for job in jobs) / 3600


def test_totals_are_those_of_the_sources(traces: Path) -> None:
    assert _gpu_hours(read_trace(traces / "dally_sensetime/batch_500.csv").jobs) == pytest.approx(13_054, abs=1)
    assert _gpu_hours(read_trace(traces / "philly_slices/philly_5000.csv").jobs) == pytest.approx(47_234, abs=1)
    assert _gpu_hours(read_trace(traces / "tiresias/480_job.csv").jobs) * 3600 == pytest.approx(1_534_090)


def test_the_native_gavel_trace_says_what_its_table_says(traces: Path) -> None:
    native, table = (
        read_trace(traces / f"gavel/physical_cluster/max_min_fairness.{end}").jobs for end in ("trace", "csv")
    )
    facts = [[(job.arrival_s, job.gpus, job.work_s, job.model) for job in jobs] for jobs in (native, table)]
    assert facts[0] == facts[1]


def test_gangs_that_gavel_never_measured_are_listed(traces: Path) -> None:
    found = read_trace(traces / "gavel/msr_seed0/2869ce.csv")
    assert (len(found.jobs), len(found.problems)) == (354, 179)
    assert {problem.kind for problem in found.problems} == {"no measured throughput for its GPUs"}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "jobs"),
    [("pollux/workloads/workload-6.csv", 160), ("sia/workloads_philly/workload-1.csv", 160)],
)
def test_workloads_get_their_durations_from_measured_steps(traces: Path, name: str, jobs: int) -> None:
    found = read_trace(traces / name)
    assert (len(found.jobs), found.problems) == (jobs, ())
    assert found.speed is not None


def test_a_workload_without_measurements_says_what_it_needs(traces: Path, tmp_path: Path) -> None:
    lone = tmp_path / "a/b/c/d/workload.csv"
    lone.parent.mkdir(parents=True)
    lone.write_text((traces / "pollux/workloads/workload-1.csv").read_text())
    with pytest.raises(InputError, match="no app_profiles beside it"):
        read_trace(lone)
    with pytest.raises(InputError, match="nothing at"):
        read_trace(lone, MeasuredSpeeds(profiles=tmp_path / "nowhere"))


def test_the_rhythm_of_helios(traces: Path) -> None:
    rhythm = read_rhythm(traces / "helios_venus/cluster_throughput_10min.csv")
    jobs = [Job(id=str(i), arrival_s=float(i), gpus=1, work_s=1.0) for i in range(2000)]
    week_s = 7 * 86400.0
    drawn = [job.arrival_s for job in with_rhythm(jobs, rhythm, span_s=week_s, seed=3)]
    assert drawn == sorted(drawn)
    assert drawn[0] >= 0
    assert drawn[-1] <= week_s
    assert drawn == [job.arrival_s for job in with_rhythm(jobs, rhythm, span_s=week_s, seed=3)]
    # Kolmogorov-Smirnov at 0.1 %: 1.95 / sqrt(n).
    share = np.interp(drawn, rhythm.at_s, rhythm.total) / np.interp(week_s, rhythm.at_s, rhythm.total)
    assert np.abs(share - (np.arange(2000) + 0.5) / 2000).max() < 1.95 / math.sqrt(2000)
    with pytest.raises(InputError, match="spans"):
        with_rhythm(jobs, rhythm, span_s=400 * 86400.0, seed=0)
