"""Steps in columns are the steps of `what_if`, fleet by fleet; and they obey its laws."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwise.cloud.compute import gpu_time
from stallwise.cloud.fleets import Fleets, fleets_of, shapes_of
from stallwise.cloud.speed import Speeds, speeds
from stallwise.cloud.subject import Subject, subject_of
from stallwise.model.datapath import LoaderWork
from stallwise.model.whatif import Answer, Change, what_if
from stallwise.record.prediction import Wanted, predict_run
from stallwise.record.setup import Asked
from stallwise.run.reader import Run
from tests.cloud.made import catalog, made_subject
from tests.report.made_runs import make_full_run

NAMES = ("g5.12xlarge", "g4dn.12xlarge", "p4d.24xlarge", "p3.8xlarge", "p3.16xlarge", "p5.48xlarge", "g6.xlarge")


def _columns(subject: Subject, *, scale_batch: bool = False, nodes: int = 5) -> tuple[Fleets, Speeds]:
    instances = [catalog().instance(name) for name in NAMES]
    shapes, _, unjudged = shapes_of(subject, instances, {})
    assert not unjudged
    fleets = fleets_of(shapes, subject, max_nodes=nodes)
    return fleets, speeds(subject, fleets, scale_batch=scale_batch)


def _asked_one_by_one(subject: Subject, fleets: Fleets, found: Speeds, i: int) -> Answer:
    """The same fleet through `what_if`."""
    job, shape = subject.job, fleets.shapes[int(fleets.shape[i])]
    used, nodes = int(fleets.used[i]), int(fleets.nodes[i])
    batch, passes = float(found.batch[i]), int(found.passes[i])
    seconds = float(shape.time.seconds(np.array([batch]), np.array([float(passes)]))[0])
    trace = job.trace
    in_passes = job.overlap.accumulate * (trace.forward_s + trace.backward_s)
    change = Change(
        compute_speed=(in_passes * batch + trace.update_s) / seconds,
        batch=batch / passes,
        overlap=replace(job.overlap, accumulate=job.overlap.accumulate * passes),
        workers=int(found.workers[i]),
        cores_per_node=shape.cores,
    )
    asked = replace(job, compute_factors=(shape.time.low, shape.time.high))
    return what_if(asked, change, replace(shape.fabric, gpus_per_node=used), used * nodes)


@pytest.mark.parametrize("scale_batch", [False, True])
@pytest.mark.parametrize("scheme", ["ddp", "zero3", "wfbp"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_columns_are_what_if(scheme: str, scale_batch: bool, accumulate: int) -> None:
    subject = made_subject(scheme=scheme, accumulate=accumulate, layers=9)
    fleets, found = _columns(subject, scale_batch=scale_batch, nodes=3)
    assert found.fits.sum() > 30
    for i in np.flatnonzero(found.fits)[::3].tolist():
        truth = _asked_one_by_one(subject, fleets, found, i)
        assert found.step_s[i] == pytest.approx(truth.step_s, rel=1e-9)
        assert found.low_s[i] == pytest.approx(truth.low_s, rel=1e-9)
        assert found.high_s[i] == pytest.approx(truth.high_s, rel=1e-9)


def test_a_run_is_taken_to_another_gpu_as_predict_does(tmp_path: Path) -> None:
    make_full_run(tmp_path / "run")
    run = Run.open(tmp_path / "run")
    subject = subject_of(run, catalog())
    for name in ("p4d.24xlarge", "g4dn.12xlarge", "p5.48xlarge", "g5.12xlarge"):
        instance = catalog().instance(name)
        told = predict_run(run, Wanted(gpu=instance.gpu, asked=Asked(instance=instance)), catalog()).compute
        time = gpu_time(subject, instance.gpu)
        own = subject.job.compute_factors or (1.0, 1.0)
        seconds = float(time.seconds(np.ones(1), np.ones(1))[0])
        assert seconds == pytest.approx(told.s, rel=1e-9)
        assert (time.low / own[0] * seconds, time.high / own[1] * seconds) == pytest.approx((told.low_s, told.high_s))


def test_memory_asks_for_passes_then_refuses() -> None:
    subject = made_subject(gpus=8, activation_bytes=9e9)
    fleets, found = _columns(subject)
    one = (fleets.gpus == 1) & found.fits
    assert (found.passes[one] > 1).any()  # eight times the batch on one GPU goes in several passes
    tiny = made_subject(parameters=30e9)
    _, found = _columns(tiny)
    assert not found.fits.any()
    assert set(found.why_not.tolist()) == {1}


@settings(max_examples=10)
@given(prepare=st.floats(0.0, 5.0), gradient=st.floats(1.0, 2000.0))
def test_removing_a_stall_never_slows(prepare: float, gradient: float) -> None:
    with_stall = made_subject(prepare_s=prepare, gradient_mb=gradient, layers=6)
    fleets, slow = _columns(with_stall, nodes=2)
    work = LoaderWork(prepare_s=0.0, blocked_s=0.0, workers=2)
    without = replace(with_stall, job=replace(with_stall.job, work=work, trace=replace(with_stall.job.trace, copy_s=0)))
    _, quick = _columns(without, nodes=2)
    fits = slow.fits & quick.fits
    assert len(fleets) == len(fits)
    assert (quick.step_s[fits] <= slow.step_s[fits] * (1 + 1e-12)).all()


def test_more_data_than_memory_is_read_from_disk() -> None:
    subject = replace(made_subject(), bytes_per_sample=5e6)
    instances = [catalog().instance(name) for name in NAMES]
    shapes, _, _ = shapes_of(subject, instances, {})
    fleets = fleets_of(shapes, subject, max_nodes=2)
    small = speeds(subject, fleets, scale_batch=False, data_bytes=1e9)
    large = speeds(subject, fleets, scale_batch=False, data_bytes=5e13)
    fits = small.fits
    assert (large.step_s[fits] >= small.step_s[fits] * (1 - 1e-12)).all()
    assert (large.step_s[fits] > 1.01 * small.step_s[fits]).any()
    assert (small.cold_s[fits] >= small.step_s[fits] * (1 - 1e-12)).all()
