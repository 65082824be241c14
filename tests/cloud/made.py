"""Job models made by hand: a network whose layers, gradients and loader are known."""

from dataclasses import replace

from stallwise.analysis.job import JobModel
from stallwise.hardware import load_catalog
from stallwise.hardware.catalog import Catalog
from stallwise.model.compute.memory import Footprint
from stallwise.model.compute.transfer import StepWork
from stallwise.model.data.datapath import LoaderWork
from stallwise.model.exchange.overlap import Overlap
from stallwise.model.statistics.conformal import ErrorSpread
from stallwise.model.statistics.stalls import Share
from stallwise.model.step.job import MeasuredJob
from stallwise.workload.layers import Layer, LayerTrace


def catalog() -> Catalog:
    """The shipped one."""
    return load_catalog()


def made_model(
    *,
    gpus: int = 4,
    gradient_mb: float = 100.0,
    layers: int = 24,
    compute_s: float = 0.2,
    prepare_s: float = 0.3,
    scheme: str = "ddp",
    accumulate: int = 1,
    samples: float = 64.0,
    gpu: str = "A10G",
    parameters: float | None = None,
    activation_bytes: float = 3e9,
) -> JobModel:
    """`gpus` GPUs of one machine; a third of compute is forward, a twentieth update."""
    size = int(gradient_mb * 1e6 / layers)
    passes_s = 0.95 * compute_s / accumulate
    trace = LayerTrace(
        source="made",
        layers=tuple(
            Layer(
                name=f"layer {i}",
                forward_s=passes_s / 3 / layers,
                backward_s=2 * passes_s / 3 / layers,
                gradient_bytes=size * (3 if i % 7 == 0 else 1),
            )
            for i in range(layers)
        ),
        copy_s=0.004,
        update_s=0.05 * compute_s,
    )
    job = MeasuredJob(
        name="train.py",
        trace=trace,
        overlap=replace(Overlap(), scheme=scheme, accumulate=accumulate),  # type: ignore[arg-type]
        gpus=gpus,
        gpus_per_node=gpus,
        step=Share(compute_s + 0.02, compute_s + 0.015, compute_s + 0.03),
        samples=samples,
        compute_factors=(0.97, 1.04),
        backend="nccl",
        element_bytes=4.0,
        work=LoaderWork(prepare_s=prepare_s, blocked_s=0.01, workers=2),
        data_factors=(0.9, 1.2),
        cores_per_node=8,
    )
    count = gradient_mb * 1e6 / 4 if parameters is None else parameters
    return JobModel(
        job=job,
        measured_compute_s=compute_s,
        source=catalog().gpu(gpu),
        precision="fp32",
        work=StepWork(flop=1.5e12, activation_bytes=activation_bytes, parameters=count, kernels=240.0),
        spread=ErrorSpread(-0.3, 0.5),
        footprint=Footprint(parameters=count, trained_parameters=count, activation_bytes=activation_bytes),
        sharded=scheme == "zero3",
        bytes_per_sample=110_000.0,
        checkpoint_bytes=12 * count,
    )
