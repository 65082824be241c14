"""A device's idle stretches and their causes: timelines made by hand, whose answer is known, and published traces."""

from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.analysis.idle_time import AttributedTime, Stretch, attribute, device_moment, sampled_time, timeline_of
from stallwise.analysis.stacks import StackSample
from stallwise.run.traces.kineto_events import Args, Event, EventReader


class Trace:
    """Events of one stream and one host thread, in microseconds."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._next = 0

    def host(self, name: str, start: float, duration: float, category: str = "cuda_runtime") -> None:
        self.events.append(Event(name=name, ph="X", cat=category, ts=start, dur=duration))

    def kernel(self, launch: float, start: float, duration: float, name: str = "gemm") -> None:
        """A kernel whose launch takes the host 4 µs."""
        self._next += 1
        arguments = Args(correlation=self._next)
        category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        call = "cudaMemcpyAsync" if name.startswith("Memcpy") else "cudaLaunchKernel"
        self.events.append(Event(name=call, ph="X", cat="cuda_runtime", ts=launch, dur=4, args=arguments))
        self.events.append(Event(name=name, ph="X", cat=category, ts=start, dur=duration, args=arguments))

    def causes(self, end: float, samples: tuple[StackSample, ...] = ()) -> dict[str, float]:
        """Microseconds by cause, from 0 to `end`."""
        return totals(attribute(timeline_of(self.events), Stretch(0.0, end), samples))


def totals(rows: list[AttributedTime]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for row in rows:
        sums[row.cause] += row.s * 1e6
    return {cause: us for cause, us in sums.items() if us > 1e-6}


def test_a_device_that_is_fed_in_time_only_computes() -> None:
    trace = Trace()
    for number in range(10):
        trace.kernel(launch=5.0 * number - 50, start=100.0 * number + 2, duration=98)  # 2 µs apart, launched long ago
    assert trace.causes(1000) == pytest.approx({"compute": 1000})


def test_a_host_that_launches_late_is_named() -> None:
    trace = Trace()
    for number in range(10):
        trace.kernel(launch=100.0 * number, start=100.0 * number + 10, duration=40)
    assert trace.causes(1000) == pytest.approx({"compute": 400, "launch": 600})


def test_waiting_for_the_loader_allocating_and_copying() -> None:
    trace = Trace()
    trace.host("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 500, "user_annotation")
    trace.kernel(launch=500, start=510, duration=90, name="Memcpy HtoD (Pageable -> Device)")
    trace.host("cudaMalloc", 600, 200)
    trace.kernel(launch=800, start=810, duration=190)
    causes = trace.causes(1000)
    assert causes["loader"] == pytest.approx(500)
    assert causes["allocate"] == pytest.approx(200)
    assert causes["compute"] == pytest.approx(190)
    assert causes["copy"] == pytest.approx(90 + 4)
    assert sum(causes.values()) == pytest.approx(1000)


def test_what_a_synchronisation_costs_is_what_the_host_could_have_been_ahead() -> None:
    """The host needs 100 µs for a step of 400 µs of the device, and waits for it: the device idles 100 µs in each."""
    trace = Trace()
    for number in range(5):
        at = 500.0 * number
        trace.kernel(launch=at + 95, start=at + 100, duration=400)
        trace.host("cudaStreamSynchronize", at + 99, 401)
    causes = trace.causes(2500)
    assert causes["compute"] == pytest.approx(2000)
    assert causes["synchronise"] == pytest.approx(400, rel=0.3)


def test_a_synchronisation_that_a_slow_host_would_not_miss_costs_nothing() -> None:
    """The host works 450 of 500 µs: without the wait it would still be late."""
    trace = Trace()
    for number in range(5):
        at = 500.0 * number
        for nth in range(3):
            trace.kernel(launch=at + 150 * nth + 140, start=at + 150 * nth + 150, duration=10)
        trace.host("cudaStreamSynchronize", at + 455, 10)
    causes = trace.causes(2500)
    assert causes["launch"] > 10 * causes.get("synchronise", 0.0)


def test_samples_say_which_python_a_long_gap_was() -> None:
    trace = Trace()
    trace.kernel(launch=0, start=10, duration=90)
    trace.kernel(launch=5100, start=5110, duration=90)
    samples = (
        StackSample(1e-3, "data code", "train.py:7 get_batch"),
        StackSample(2e-3, "data code", "train.py:7 get_batch"),
        StackSample(3e-3, "data code", "train.py:7 get_batch"),
        StackSample(4e-3, "python", "train.py:9 main"),
    )
    causes = trace.causes(5200, samples)
    assert causes["data code"] == pytest.approx(0.75 * 5004)
    assert causes["python"] == pytest.approx(0.25 * 5004)


def test_without_a_device_each_sample_stands_for_the_time_before_it() -> None:
    samples = [
        StackSample(0.5, "python", "a.py:1 f"),
        StackSample(1.2, "data code", "a.py:2 g"),
        StackSample(1.5, "compute", "a.py:3 h"),
        StackSample(2.5, "python", "a.py:1 f"),
    ]
    seconds = {row.cause: row.s for row in sampled_time(samples, 1.0, 2.0)}
    assert seconds == pytest.approx({"data code": 0.2, "compute": 0.3, "python": 0.5})


def test_a_window_begins_where_the_device_begins_what_was_launched_after_its_mark() -> None:
    trace = Trace()
    trace.kernel(launch=0, start=10, duration=500)
    trace.kernel(launch=100, start=510, duration=50)
    trace.host("stallwise#1", 50, 1, "user_annotation")
    trace.host("stallwise#1", 515, 1, "gpu_user_annotation")
    timeline = timeline_of(trace.events)
    assert device_moment(timeline, timeline.marks["stallwise#1"]) == 510


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                (
                    "gemm",
                    "Memcpy HtoD",
                    "nccl:all_reduce",
                    "cudaStreamSynchronize",
                    "cudaFree",
                    "enumerate(DataLoader)#x",
                )
            ),
            st.floats(0, 1000),
            st.floats(0, 300),
            st.floats(0, 300),
        ),
        max_size=20,
    )
)
def test_causes_are_never_negative_and_add_up_to_the_window(events: list[tuple[str, float, float, float]]) -> None:
    trace = Trace()
    for name, start, delay, duration in events:
        if name in ("gemm", "Memcpy HtoD", "nccl:all_reduce"):
            trace.kernel(launch=start, start=start + delay, duration=duration, name=name)
        else:
            trace.host(name, start, duration, "user_annotation" if name.startswith("enumerate") else "cuda_runtime")
    rows = attribute(timeline_of(trace.events), Stretch(100.0, 1200.0), [StackSample(5e-4, "python", "a.py:1 f")])
    assert all(row.s >= 0 for row in rows)
    assert sum(row.s for row in rows) * 1e6 == pytest.approx(1100)


def _published(path: Path) -> dict[str, float]:
    timeline = timeline_of(event for piece in EventReader(path).pieces() for event in piece)
    window = Stretch(timeline.work[0][0], max(end for _, end, _ in timeline.work))
    rows = totals(attribute(timeline, window))
    assert sum(rows.values()) == pytest.approx(window.end - window.start)
    return {cause: us / (window.end - window.start) for cause, us in rows.items()}


def test_the_same_published_script_without_and_with_loader_workers(shared_data: Path) -> None:
    """ResNet-50 on a V100: with four workers the loader's 28 % of the time are gone, the device's work is the same."""
    folder = shared_data / "kineto/kineto_resnet50"
    without = _published(folder / "resnet50_num_workers_0_worker0.1623143089861.pt.trace.json.gz")
    workers = _published(folder / "resnet50_num_workers_4_worker0.1623212756351.pt.trace.json.gz")
    assert without["loader"] == pytest.approx(0.285, abs=0.02)
    assert workers["loader"] < 0.01
    assert workers["compute"] > 0.7


def test_published_traces_of_other_devices(shared_data: Path) -> None:
    """A network that fills its V100, and a small one of a single batch on an H100, which hardly has any work."""
    assert _published(shared_data / "kineto/hta/ns_resolution_V100_rank0of1.json.gz")["compute"] > 0.95
    assert _published(shared_data / "kineto/tracelens/h100_bert-small.json.gz")["launch"] > 0.8
    assert sum(_published(shared_data / "kineto/hta/mi250_minitoy_train.json.gz").values()) == pytest.approx(1)
