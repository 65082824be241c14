"""Job speed by placement: laws of the physics, and the measured tables."""

import csv
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.cluster.engine.build import kinds_of, tiers
from stallwise.cluster.job import Job
from stallwise.cluster.policies.catalog import policy_named
from stallwise.cluster.simulator import simulate
from stallwise.cluster.speed._profiles import NETWORKS, LayerProfiles, TierLink, TierNetwork, read_profile, units_of
from stallwise.cluster.speed._tables import Apps, GavelThroughputs, packed
from stallwise.cluster.speed.base import Penalty, Shape, Speed
from stallwise.cluster.topology import Cluster
from stallwise.errors import InputError, UnknownNameError
from stallwise.workload.layers import Layer, LayerTrace

TRACE = LayerTrace.of(
    [
        Layer(name=str(size), forward_s=1e-4, backward_s=2e-4, gradient_bytes=size)
        for size in (4_000_000, 100_000, 80_000_000)
    ],
    source="made up",
)
LEVELS = ("slot", "machine", "rack")


def rate(shape: Shape, network: TierNetwork = NETWORKS["released"]) -> float:
    job = Job(id="a", arrival_s=0, gpus=shape.gpus, work_s=1, model="m")
    return LayerProfiles({"m": TRACE}, network, LEVELS).rate(job, shape)


def test_wider_is_slower_and_one_gpu_exchanges_nothing() -> None:
    rates = [rate(Shape(8, spans)) for spans in ((2, 1, 1), (2, 2, 1), (2, 2, 2))]
    assert sorted(rates, reverse=True) == rates
    assert rate(Shape(1, (1, 1, 1))) == 1.0


@given(st.floats(1e8, 1e12), st.floats(1.0, 10.0), st.integers(1, 6))
def test_more_bandwidth_is_never_slower_and_sharing_never_faster(bandwidth: float, more: float, jobs: int) -> None:
    def network(speed: float) -> TierNetwork:
        return TierNetwork(links={"gpu": TierLink(topology="ring", bandwidth_bytes_per_s=speed, latency_s=1e-6)})

    shape = Shape(8, (4, 2, 1))
    assert rate(shape, network(bandwidth * more)) >= rate(shape, network(bandwidth)) * (1 - 1e-12)
    shared = Shape(8, (4, 2, 1), (1, jobs, 1))
    assert 0 < rate(shared, network(bandwidth)) <= rate(shape, network(bandwidth)) * (1 + 1e-12)


def test_units_of_even_and_uneven_gangs() -> None:
    assert units_of(Shape(32, (8, 4, 2))) == [4, 2, 2, 2]
    assert units_of(Shape(8, (3, 3, 1))) == [1, 8, 1, 1]
    assert units_of(Shape(8, (2, 2, 2))) == [4, 1, 1, 2]


def test_a_profile_delays_the_next_message_by_the_input_gradient(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text(
        "layer,fwd_compute_ns,input_grad_compute_ns,weight_grad_compute_ns,weight_grad_collective,weight_grad_bytes\n"
        "a,1,20,300,ALLREDUCE,4\nb,5,60,700,ALLREDUCE,8\n"
    )
    trace = read_profile(path)
    # b's weights first; then b's input and a's weights; nobody needs the input gradient of the first layer.
    assert [layer.backward_s for layer in trace.layers] == pytest.approx([360e-9, 700e-9])
    path.write_text("layer,a\nb,c\n")
    with pytest.raises(InputError, match="not a layer profile"):
        read_profile(path)


def test_unknown_models_are_said() -> None:
    speed = LayerProfiles({"ResNet50": TRACE}, NETWORKS["released"], LEVELS)
    with pytest.raises(UnknownNameError, match="Did you mean ResNet50"):
        speed.kind(Job(id="a", arrival_s=0, gpus=1, work_s=1, model="resnet-50"))


def test_penalty() -> None:
    flat = Penalty((1.0, 0.5))
    job = Job(id="a", arrival_s=0, gpus=4, work_s=1)
    assert flat.rate(job, Shape(4, (1, 1))) == 1.0
    assert flat.rate(job, Shape(4, (2, 2))) == 0.5
    assert flat.rate(job, Shape(4, (2, 1), (2, 1))) == pytest.approx(1 / 3)
    with pytest.raises(InputError):
        Penalty((1.0, 0.0))


SLOTS = Cluster.counts(gpus=8, slots=2, machines=2, racks=2)
NO_SLOTS = Cluster.counts(gpus=8, machines=2, racks=2)


def test_penalties_are_counted_from_the_machine() -> None:
    """`1,0.5,0.1` means the same whether or not machines have slots."""
    flat, job = Penalty((1.0, 0.5, 0.1)), Job(id="a", arrival_s=0, gpus=8, work_s=1)
    slots = [flat.inside(SLOTS).rate(job, Shape(8, spans)) for spans in ((2, 1, 1), (2, 2, 1), (2, 2, 2))]
    plain = [flat.inside(NO_SLOTS).rate(job, Shape(8, spans)) for spans in ((1, 1), (2, 1), (2, 2))]
    assert slots == plain == [1.0, 0.5, 0.1]


@dataclass(frozen=True)
class ByKind(Speed):
    """Another speed for every model on every number of machines."""

    def kind(self, job: Job) -> str | None:
        return job.model

    def rate(self, job: Job, shape: Shape) -> float:
        return 1.0 / (1.0 + int(job.model or 0) / 7 + shape.spans[0] / 3)


def test_every_kind_has_its_own_speed_on_every_shape() -> None:
    """One after the other on machines of four: kinds and counts must never be taken for each other."""
    cluster, speed = Cluster.counts(gpus=4, machines=8), ByKind()
    jobs = [
        Job(id=f"{kind} {gpus}", arrival_s=1e4 * (100 * kind + gpus), gpus=gpus, work_s=100.0, model=str(kind))
        for kind in range(24)
        for gpus in (4, 8, 12, 16, 20, 28, 32)
    ]
    outcome = simulate(jobs, cluster, policy_named("fifo"), speed=speed)
    for job, took_s in zip(jobs, (outcome.finish_s - outcome.first_start_s).tolist(), strict=True):
        assert took_s == pytest.approx(100.0 / speed.rate(job, Shape(job.gpus, (-(-job.gpus // 4), 1))), rel=1e-9)


def test_what_a_looser_place_costs_is_told_by_machines_not_slots(shared_data: Path) -> None:
    """Pollux' and Gavel's tables know machines; slots below them must not be taken for machines."""
    apps = Apps.read(shared_data / "cluster_traces/pollux/app_profiles")
    gavel = GavelThroughputs.read(shared_data / "cluster_traces/gavel/simulation_throughputs.json")
    job_type = next(kind for kind, gpus in gavel.packed if gpus == 8 and (kind, 8) in gavel.spread)
    for speed, job in (
        (apps, apps.job("a", 0.0, "cifar10", 8, 1024)),
        (gavel, gavel.job("a", 0.0, job_type, 8, 1000.0)),
    ):
        policy, kinds = policy_named("patient"), kinds_of([job], speed)
        slots, plain = (tiers(cluster, speed, kinds, policy)[0] for cluster in (SLOTS, NO_SLOTS))
        levels = len(SLOTS.levels) + 1
        assert slots[1:levels].tolist() == plain[: levels - 1].tolist()
        assert slots[levels + 1 :].tolist() == plain[levels - 1 :].tolist()
        assert slots[0] == slots[1]


def test_tensor_skew_splits_dallys_models_as_its_authors_do(shared_data: Path) -> None:
    from stallwise.cluster.speed._profiles import read_profiles

    profiles = read_profiles(shared_data / "cluster_traces/dally_sensetime/layer_profiles")
    speed = LayerProfiles(profiles, NETWORKS["released"], LEVELS)
    skewed = {m for m in profiles if speed.skewed(Job(id="a", arrival_s=0, gpus=1, work_s=1, model=m))}
    assert skewed == {"AlexNet", "VGG", "MobileNetV3"}


def test_pollux_tables(shared_data: Path) -> None:
    apps = Apps.read(shared_data / "cluster_traces/pollux/app_profiles")
    with (shared_data / "cluster_traces/pollux/app_profiles/cifar10/placements.csv").open() as file:
        row = next(row for row in csv.DictReader(file) if row["placement"] == "44")
    local = int(row["local_bsz"])
    assert apps.apps["cifar10"].step_s((4, 4), 8 * local) == pytest.approx(float(row["step_time"]))
    job = apps.job("a", 0.0, "cifar10", 8, 8 * local)
    assert apps.rate(job, Shape(8, (2, 1), parts=(4, 4))) == 1.0
    assert apps.rate(job, Shape(8, (8, 1), parts=(1,) * 8)) < 1.0
    assert packed(6, 4) == (4, 2)
    with pytest.raises(UnknownNameError):
        apps.job("a", 0.0, "cifar", 8, 128)


def test_gavel_tables(shared_data: Path) -> None:
    gavel = GavelThroughputs.read(shared_data / "cluster_traces/gavel/simulation_throughputs.json", machine=4)
    job_type, gpus = next(key for key in gavel.packed if key[1] == 4 and key in gavel.spread)
    job = gavel.job("a", 0.0, job_type, gpus, 1000.0)
    assert job.work_s == pytest.approx(1000 / gavel.packed[job_type, 4])
    assert gavel.rate(job, Shape(4, (1, 1))) == 1.0
    slower = min(1.0, gavel.spread[job_type, 4] / gavel.packed[job_type, 4])
    assert slower < 1.0
    assert gavel.rate(job, Shape(4, (4, 1), parts=(1, 1, 1, 1))) == pytest.approx(slower)
    assert gavel.rate(job, Shape(4, (1, 1), parts=(4,))) == 1.0
    outcome = simulate([job], Cluster.counts(gpus=4, machines=2), policy_named("fifo"), speed=gavel)
    assert outcome.finish_s[0] == pytest.approx(job.work_s)
