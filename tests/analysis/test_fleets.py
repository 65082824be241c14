"""Steps in columns are those of `Analysis.on`, fleet by fleet; the two ways to a graph agree; and laws hold."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwise.analysis.fleets import (
    BATCH_GROWTH,
    LARGE_BATCH,
    MEMORY_FOR_FILES,
    NO_MEMORY,
    UNEVEN,
    Fleets,
    FleetSettings,
    FleetSteps,
    all_fleets,
    nodes_of,
    one_fleet,
    steps_of,
)
from stallwise.analysis.job import JobModel
from stallwise.analysis.prediction import predict, step_s
from stallwise.analysis.target import Target
from stallwise.errors import InputError
from stallwise.model.data.cache import lru_miss
from stallwise.model.data.datapath import LoaderWork
from stallwise.model.exchange.overlap import SCHEMES, Overlap
from stallwise.model.step import setups as setups_module
from stallwise.model.step.job import OwnLinks
from stallwise.model.step.setups import setup_prediction, step_times
from tests.cloud.made import catalog, made_model

NAMES = ("g5.12xlarge", "g4dn.12xlarge", "p4d.24xlarge", "p3.8xlarge", "p3.16xlarge", "p5.48xlarge", "g6.xlarge")


def columns(model: JobModel, nodes: int = 5, **chosen: object) -> tuple[Fleets, FleetSteps]:
    kinds, _, unjudged = nodes_of(model, [catalog().instance(name) for name in NAMES])
    assert not unjudged
    fleets = all_fleets(kinds, model, max_nodes=nodes)
    return fleets, steps_of(model, fleets, FleetSettings(**chosen))  # type: ignore[arg-type]


def asked_alone(model: JobModel, fleets: Fleets, i: int, **chosen: object) -> Target:
    """The same fleet as one target."""
    kind = fleets.kinds[int(fleets.kind[i])]
    return Target(
        instance=kind.instance,
        nodes=int(fleets.nodes[i]),
        gpus_per_node=int(fleets.used[i]),
        **chosen,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("scheme", ["ddp", "zero3", "wfbp"])
@pytest.mark.parametrize(("accumulate", "workers"), [(1, 2), (2, 2), (1, 0)])
def test_a_column_is_the_prediction_of_that_fleet(scheme: str, accumulate: int, workers: int) -> None:
    model = made_model(scheme=scheme, accumulate=accumulate, layers=9)
    work = LoaderWork(prepare_s=0.3, blocked_s=0.01, workers=workers)
    model = replace(model, job=replace(model.job, work=work, cold_blocked_s=0.2))
    fleets, steps = columns(model, nodes=3)
    assert steps.fits.sum() > 30
    for i in np.flatnonzero(steps.fits)[::7].tolist():
        found = predict(model, asked_alone(model, fleets, i), OwnLinks())
        assert found.step_s == pytest.approx(steps.step_s[i], rel=1e-9)
        assert found.low_s == pytest.approx(steps.low_s[i], rel=1e-9)
        assert found.high_s == pytest.approx(steps.high_s[i], rel=1e-9)
        assert found.cold_s == pytest.approx(steps.cold_s[i], rel=1e-9)
        split = found.answer.split
        assert split.step_s == pytest.approx(found.step_s, rel=1e-9), "parts add up to the step"
        assert min(split.compute_s, split.exchange_s, split.copy_s, split.read_s) >= 0


@pytest.mark.parametrize("scheme", sorted(setups_module._ONE_GRAPH))
@pytest.mark.parametrize("workers", [0, 3])
def test_one_graph_for_all_columns_is_the_graph_of_each(scheme: str, workers: int) -> None:
    assert scheme in SCHEMES
    model = made_model(layers=7)
    work = LoaderWork(prepare_s=0.3, blocked_s=0.05, workers=workers)
    model = replace(model, job=replace(model.job, work=work, cold_blocked_s=0.4))
    fleets, steps = columns(model, nodes=2, overlap=replace(Overlap(), scheme=scheme, compression=0.5))
    found = step_times(model.job, steps.setups)
    for i in range(0, len(fleets), 9):
        graph = setup_prediction(model.job, steps.setups, i)
        assert found.step_s[i] == pytest.approx(graph.step_s, rel=1e-9)
        low_s, high_s = setups_module._bounds_s(model.job, steps.setups, i, graph)
        assert found.low_s[i] == pytest.approx(low_s, rel=1e-9)
        met = 1.0 if fleets.gpus[i] in (1, model.gpus) else setups_module.MET_HIGH
        assert found.high_s[i] == pytest.approx(high_s * met, rel=1e-9)


def test_memory_asks_for_passes_then_refuses() -> None:
    model = made_model(gpus=8, activation_bytes=9e9)
    fleets, steps = columns(model, batch=8.0)
    one = (fleets.gpus == 1) & steps.fits
    assert (steps.setups.passes[one] > 1).any(), "eight times the batch on one GPU goes in several passes"
    _, steps = columns(made_model(parameters=30e9, gpu="RTX3090"))
    assert set(steps.why_not.tolist()) == {NO_MEMORY}


def test_a_global_batch_is_shared_in_whole_samples_or_not_at_all() -> None:
    model = made_model(gpus=4, samples=6)
    fleets, steps = columns(model, global_batch=24.0)
    assert (steps.batch * fleets.gpus * 6)[steps.fits] == pytest.approx(24.0)
    assert set(fleets.gpus[steps.why_not == UNEVEN].tolist()) >= {5, 10, 16, 40}
    assert {1, 2, 3, 4} <= set(fleets.gpus[steps.fits].tolist())


def test_a_global_batch_does_not_grow_without_bound() -> None:
    model = made_model(gpus=2)
    fleets, steps = columns(model, largest_growth=BATCH_GROWTH)
    assert (fleets.gpus[steps.fits] <= 2 * BATCH_GROWTH).all()
    assert (steps.why_not[fleets.gpus > 2 * BATCH_GROWTH] == LARGE_BATCH).all()
    _, free = columns(model)
    assert free.fits.sum() > steps.fits.sum()


def test_loader_workers_are_as_measured_within_the_cores() -> None:
    model = made_model()  # two per GPU
    fleets, steps = columns(model)
    cores = fleets.of_kind("cores") // fleets.used
    assert (steps.setups.workers == np.minimum(2, np.maximum(1, cores))).all()
    _, steps = columns(model, workers="auto")
    assert (steps.setups.workers == np.maximum(1, cores)).all()
    _, steps = columns(model, workers=7)
    assert (steps.setups.workers == 7).all()


def test_a_target_keeps_what_is_not_said() -> None:
    model = made_model(gpus=4)
    own = predict(model, Target(link_bytes_per_s=1e10), OwnLinks())
    setup = own.setup
    assert (setup.gpus, setup.samples_per_gpu, setup.global_batch, setup.workers) == (4, 64.0, 256.0, 2)
    assert (setup.cores, setup.device, setup.precision) == (8, "A10G", "fp32")
    assert step_s(model, Target(link_bytes_per_s=1e10)) == own.step_s
    assert own.step_s >= own.compute.s


@settings(max_examples=10)
@given(prepare=st.floats(0.0, 5.0), gradient=st.floats(1.0, 2000.0))
def test_removing_a_stall_never_slows(prepare: float, gradient: float) -> None:
    with_stall = made_model(prepare_s=prepare, gradient_mb=gradient, layers=6)
    _, slow = columns(with_stall, nodes=2)
    work = LoaderWork(prepare_s=0.0, blocked_s=0.0, workers=2)
    without = replace(with_stall, job=replace(with_stall.job, work=work, trace=replace(with_stall.job.trace, copy_s=0)))
    _, quick = columns(without, nodes=2)
    fits = slow.fits & quick.fits
    assert (quick.step_s[fits] <= slow.step_s[fits] * (1 + 1e-12)).all()


@settings(max_examples=25)
@given(
    batch=st.floats(0.2, 8.0),
    workers=st.integers(0, 12),
    cached=st.floats(0.0, 1.0),
    gpus=st.integers(1, 9),
    link=st.floats(1e6, 1e12),
)
def test_no_prediction_is_below_its_compute_or_its_loader(
    batch: float, workers: int, cached: float, gpus: int, link: float
) -> None:
    model = made_model(layers=4)
    model = replace(model, job=replace(model.job, cold_blocked_s=0.5))
    target = Target(gpus=gpus, gpus_per_node=gpus, link_bytes_per_s=link, batch=batch, workers=workers, cached=cached)
    found = predict(model, target, OwnLinks())
    assert found.low_s <= found.step_s * (1 + 1e-12)
    assert found.step_s <= found.high_s * (1 + 1e-12)
    assert found.step_s >= found.compute.s * (1 - 1e-9)
    assert found.cold_s >= found.step_s * (1 - 1e-12)
    assert math.isclose(found.answer.split.step_s, found.step_s, rel_tol=1e-9)


@settings(max_examples=25)
@given(memory=st.floats(1e6, 1e12), more=st.floats(1.0, 100.0))
def test_more_memory_is_never_slower_and_enough_of_it_finds_all_of_the_data(memory: float, more: float) -> None:
    model = made_model(layers=4)
    model = replace(model, job=replace(model.job, cold_blocked_s=5.0))

    def on(**options: float) -> float:
        target = Target(gpus=4, gpus_per_node=4, link_bytes_per_s=1e11, dataset_bytes=140e9)
        return predict(model, replace(target, **options), OwnLinks()).step_s

    small, large = on(memory_bytes=memory), on(memory_bytes=memory * more)
    assert on(cached=1.0) * (1 - 1e-12) <= large <= small * (1 + 1e-12) <= on(cached=0.0) * (1 + 2e-12)
    assert on(memory_bytes=140e9 / MEMORY_FOR_FILES) == pytest.approx(on(cached=1.0))
    assert on(memory_bytes=70e9 / MEMORY_FOR_FILES) == pytest.approx(on(cached=1 - lru_miss(0.5)))


def test_what_memory_keeps_is_not_asked_twice_nor_of_unknown_data() -> None:
    model = replace(made_model(layers=4), bytes_per_sample=None)
    whole = Target(memory_bytes=1e9, gpus=2, gpus_per_node=2, link_bytes_per_s=1e11, network_bytes_per_s=1e9)
    for target, words in (
        (whole, "size of the dataset"),
        (replace(whole, dataset_bytes=1e10, cached=0.5), "not both"),
        (replace(whole, dataset_bytes=1e10, gpus_per_node=1), "several nodes"),
    ):
        with pytest.raises(InputError, match=words):
            predict(model, target, OwnLinks())


def test_more_data_than_memory_is_read_from_disk() -> None:
    model = replace(made_model(), bytes_per_sample=5e6)
    _, small = columns(model, nodes=2, dataset_bytes=1e9)
    _, large = columns(model, nodes=2, dataset_bytes=5e13)
    fits = small.fits
    assert (large.step_s[fits] >= small.step_s[fits] * (1 - 1e-12)).all()
    assert (large.step_s[fits] > 1.01 * small.step_s[fits]).any()
    assert (small.cold_s[fits] >= small.step_s[fits] * (1 - 1e-12)).all()


def test_a_fleet_whose_last_machine_is_not_full() -> None:
    model = made_model()
    kinds, _, _ = nodes_of(model, [catalog().instance("p4d.24xlarge")])
    fleet = one_fleet(kinds[0], used=8, nodes=2, gpus=12)
    assert fleet.gpus.tolist() == [12]
    assert steps_of(model, fleet, FleetSettings()).step_s[0] > 0
