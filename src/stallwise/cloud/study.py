"""Machine records side by side: stall, epoch time and cost of standard networks. Stash's instance study, as a command.

Per machine and network, on all its GPUs, each with its batch:

    step          prediction of the network (G measured on one GPU, a third of it forward) over the measured all-reduce
    interconnect  100 · (t1 - t0) / t1                 Stash's denominators (`model/statistics/stalls`)
    prep          what decoding on all cores adds to t1
    fetch         what reading every file from the disk adds to that
    epoch         warm: samples / speed; the first with every file from disk
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stallwise.analysis.compute import cost_of
from stallwise.analysis.job import model_of_job
from stallwise.analysis.prediction import step_s
from stallwise.analysis.target import Target
from stallwise.hardware.machine import MachineRecord, NetworkRecord
from stallwise.model.exchange.fabric import NCCL, Fabric, KnownLink
from stallwise.model.exchange.overlap import Overlap
from stallwise.model.step.epoch import cost_usd
from stallwise.model.step.job import MeasuredJob
from stallwise.workload.layers import Layer, LayerTrace

_LAYERS = 20
IMAGENET = 1_281_167


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineStudy:
    """One network on one machine: throughput, stalls as fractions, epoch time and cost. None: not measured."""

    machine: str
    network: str
    gpus: int
    batch: int
    precision: str
    alone_samples_per_s: float
    """Throughput of one GPU (G)."""
    samples_per_s: float
    """Throughput of all GPUs with their stalls."""
    interconnect: float | None
    """Stall as a fraction, by Stash's denominator; `prep` and `fetch` likewise."""
    prep: float | None
    fetch: float | None
    epoch_s: float
    first_epoch_s: float | None
    usd: float | None
    """Cost of a warm epoch."""
    binds: str


def study(
    records: Mapping[str, MachineRecord], *, samples: float = IMAGENET, usd_per_h: Mapping[str, float] | None = None
) -> tuple[MachineStudy, ...]:
    """Study every network of every record, in the order of the first record that has them."""
    names = list(dict.fromkeys(network.name for record in records.values() for network in record.networks))
    rows = []
    for name in names:
        for machine, record in records.items():
            network = next((one for one in record.networks if one.name == name), None)
            if network is not None:
                rows.append(_studied(machine, record, network, samples, (usd_per_h or {}).get(machine)))
    return tuple(rows)


def _studied(
    machine: str, record: MachineRecord, network: NetworkRecord, samples: float, price: float | None
) -> MachineStudy:
    gpus = max(1, len(record.hosts[0].gpus) if record.hosts else 1)
    alone_s = network.step_s
    exchange_s = exchange_of(record, network, gpus)
    synthetic_s = alone_s + (exchange_s or 0.0)
    used = gpus if exchange_s is not None else 1
    prep_s, fetch_s = _data_s(record, network, used)
    warm_s = max(synthetic_s, prep_s or 0.0)
    cold_s = None if fetch_s is None else max(warm_s, fetch_s)
    speed = used * network.batch / warm_s
    stalls = {"exchange": synthetic_s - alone_s, "data": warm_s - synthetic_s}
    largest = max(stalls, key=lambda name: stalls[name])
    return MachineStudy(
        machine=machine,
        network=network.name,
        gpus=used,
        batch=network.batch,
        precision=network.precision,
        alone_samples_per_s=network.samples_per_s,
        samples_per_s=speed,
        interconnect=None if exchange_s is None else (synthetic_s - alone_s) / synthetic_s,
        prep=None if prep_s is None else (warm_s - synthetic_s) / warm_s,
        fetch=None if cold_s is None else (cold_s - warm_s) / cold_s,
        epoch_s=samples / speed,
        first_epoch_s=None if cold_s is None else samples / (used * network.batch / cold_s),
        usd=None if price is None else cost_usd(samples / speed, price),
        binds=largest if stalls[largest] >= 0.01 * warm_s else "compute",
    )


def exchange_of(record: MachineRecord, network: NetworkRecord, gpus: int) -> float | None:
    """Exchange that compute does not hide, by the graph; 0 on one GPU, None where the link was not measured."""
    if gpus == 1:
        return 0.0
    link = record.link("inside")
    if link is None:
        return None
    known_link = KnownLink(
        cost=cost_of(link), ranks=link.ranks, origin="measured", low=link.fit.low, high=link.fit.high
    )
    fabric = Fabric(gpus_per_node=gpus, inside=known_link, algorithms=NCCL)
    return step_s(model_of_job(job_of_network(network)), Target(gpus=gpus, fabric=fabric)) - network.step_s


def job_of_network(network: NetworkRecord) -> MeasuredJob:
    """Model a standard network as a job with equal layers, because only its step was measured."""
    layers = tuple(
        Layer(
            name=f"{network.name} {i + 1}",
            forward_s=network.step_s / 3 / _LAYERS,
            backward_s=network.step_s * 2 / 3 / _LAYERS,
            gradient_bytes=network.gradient_bytes // _LAYERS,
        )
        for i in range(_LAYERS)
    )
    trace = LayerTrace(layers=layers, source=f"{network.name} of a machine record", samples=network.batch)
    return MeasuredJob(name=network.name, trace=trace, overlap=Overlap(), gpus=1, samples=float(network.batch))


def _data_s(record: MachineRecord, network: NetworkRecord, gpus: int) -> tuple[float | None, float | None]:
    """Seconds per step for preparing and for reading the images of all GPUs; None for networks that read no images."""
    if record.decode is None or "bert" in network.name:
        return None, None
    images = gpus * network.batch
    prepare_s = images / (record.decode.per_core_samples_per_s * record.decode.cores)
    rate = record.disk_read_bytes_per_s
    return prepare_s, None if rate is None else images * record.decode.file_bytes / rate


def machine_names(paths: Sequence[str]) -> list[str]:
    """File names without folder and suffix, numbered where two are equal."""
    stems = [path.rsplit("/", 1)[-1].removesuffix(".json") for path in paths]
    return [stem if stems.count(stem) == 1 else f"{stem} {i + 1}" for i, stem in enumerate(stems)]
