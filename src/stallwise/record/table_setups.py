"""From a row of a table to the set-up that a model takes."""

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from stallwise.errors import InputError, UnknownNameError, nearest_names
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.gpu import Gpu
from stallwise.model.compute import Device
from stallwise.model.compute_cluster_job import ClusterJobSetup
from stallwise.model.compute_image import ImageSetup
from stallwise.model.compute_llm import LlmSetup, parallel
from stallwise.model.compute_network import NetworkSetup
from stallwise.model.compute_scaling import PARAMETERS_M, ScalingSetup
from stallwise.record.devices import device_of, find_gpu
from stallwise.record.table_rows import TableRow
from stallwise.workload.zoo import ImageNetwork, branch, family, kin
from stallwise.workload.zoo_shapes import LANGUAGE_MODELS, TOTALS

_IMAGE_PRECISIONS = ("amp", "fp16", "bf16", "fp32", "tf32", "float16", "bfloat16", "float32")
_HALVES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


def _listed(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` spells: case and punctuation do not matter, 2.7B is 27 as in `gpt3_27`."""
    wanted = _plain(re.sub(r"(\d)\.(\d)b\b", r"\1\2", name.lower()))
    return next((other for other in known if _plain(other) == wanted), None)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


# `8x A100 SXM4 80GB`, `8 × H100`, `RTX 3090 x2`.
_COUNTED = re.compile(r"(\d{1,5})\s*[x×*]\s*(\D.*)|(.+?)\s*[x×*]\s*(\d{1,5})", re.I)


def gpu_of(row: TableRow, catalog: Catalog, column: str = "gpu") -> Gpu:
    """The GPU a row names, in any of its spellings."""
    return fleet_of(row, catalog, column)[0]


def fleet_of(row: TableRow, catalog: Catalog, column: str = "gpu") -> tuple[Gpu, int | None]:
    """The GPU, and how many of it a name such as `8x A100` speaks of; None where it does not say."""
    name = row.name(column)
    found = _gpu(name, catalog)
    if found is not None:
        return found, None
    counted = _COUNTED.fullmatch(name)
    one = _gpu(counted[2] or counted[3], catalog) if counted else None
    if one is not None and counted is not None:
        return one, int(counted[1] or counted[4])
    try:
        return catalog.gpu(name), None
    except UnknownNameError as error:
        hint = "" if "Did you mean" in str(error) else " `stallwise catalog gpus` lists them; add your own there."
        raise row.error(f"{error}{hint}") from None


@lru_cache(maxsize=4096)  # looking for a name nobody knows takes milliseconds; tables repeat theirs
def _gpu(name: str, catalog: Catalog) -> Gpu | None:
    try:
        return catalog.gpu(name)
    except UnknownNameError:
        return catalog.gpu_of_driver_name(name) or find_gpu(name, catalog)


def counted(row: TableRow, catalog: Catalog, *, takes_several: bool) -> TableRow:
    """The row with the number of GPUs that its name speaks of in `n_gpus`, where it belongs."""
    _, count = fleet_of(row, catalog)
    if count is None:
        return row
    if not takes_several:
        said = "Name one GPU; several are said by `option` (dp4)." if "seqlen" in row.cells else "Name one GPU."
        if count == 1 or count == parallel(row.text("option").lower())[1]:
            return row
        raise row.error(f"column gpu speaks of {count} GPUs, which this kind of table does not have. {said}")
    given = row.count("n_gpus", count)
    if given != count:
        raise row.error(f"column gpu speaks of {count} GPUs, column n_gpus of {given}. Keep one of the two.")
    return TableRow({**row.cells, "n_gpus": str(count)}, row.number)


def image_setup(row: TableRow, gpu: Gpu, *, training: bool) -> ImageSetup:
    """An image network, counted or by its kin, at the row's image size."""
    gmacs, macts, params = row.number_of("fwd_gmacs"), row.number_of("macts"), row.number_of("params_m")
    macs, outputs = (None if gmacs is None else gmacs * 1e9), (None if macts is None else macts * 1e6)
    name = row.name("model")
    network = kin(name, macs, outputs)
    if network is None:
        raise row.error(
            f"no image network is like {name!r} in name. Give fwd_gmacs and macts, from which it can be judged."
        )
    precision = row.text("precision", "amp").lower()
    if precision not in _IMAGE_PRECISIONS:
        raise row.error(f"precision {precision!r} is not known. Give amp, fp16, bf16 or fp32.")
    precision = _HALVES.get(precision, precision)
    compiled = "|compiled" if row.flag("compiled") else ""
    device = device_of(gpu, precision)
    return replace(
        _sized(row, device, network, name, macs, outputs),
        parameters=network.parameters if params is None else params * 1e6,
        training=training,
        precision=precision,
        layout=row.text("layout", "nchw").lower(),
        software=f"{row.text('torch', '2.4')}{compiled}",
    )


def _sized(
    row: TableRow, device: Device, network: ImageNetwork, name: str, macs: float | None, outputs: float | None
) -> ImageSetup:
    """Counts at the row's image size: by area for a counted network, by the row's own totals for one of its kin."""
    size = row.required("img_size")
    area = (size / network.image_size) ** 2
    known = network.name == name
    work = area if known or macs is None else macs / network.all_macs
    moved = area if known or outputs is None else outputs / network.outputs
    return ImageSetup(
        device=device,
        network=name,
        family=family(name),
        branch=branch(name),
        known=known,
        # Attention grows with the square of the number of tokens.
        macs={kind: value * work * (area if kind == "attention" else 1) for kind, value in network.macs.items()},
        narrow_macs=network.narrow_macs * work,
        elements={
            kind: value * moved * (area if kind == "attention" else 1) for kind, value in network.elements.items()
        },
        kernels=network.kernels,
        tensors=network.tensors,
        parameters=network.parameters,
        batch=row.required("batch"),
        image_size=size,
        training=True,
    )


def network_setup(row: TableRow, gpu: Gpu) -> NetworkSetup:
    """A known job on one GPU of the row's kind."""
    precision = row.name("precision").lower()
    if precision not in ("amp", "fp16", "bf16", "fp32", "tf32"):
        raise row.error(f"precision {precision!r} is not known. Give amp or fp32.")
    precision = "fp32" if precision in ("fp32", "tf32") else "amp"
    return NetworkSetup(
        device=device_of(gpu, precision),
        network=_listed(row.name("model"), PARAMETERS_M) or row.name("model"),
        precision=precision,
        software=row.text("era", "ngc22"),
    )


def scaling_setup(row: TableRow, one: NetworkSetup, samples_per_s: float | None) -> ScalingSetup:
    """The same on the row's number of GPUs. The column `batch_per_gpu` holds the batch of all GPUs together."""
    gpus = row.count("n_gpus", 1)
    batch = row.number_of("batch_per_gpu")
    return ScalingSetup(
        device=one.device,
        network=one.network,
        precision=one.precision,
        software=one.software,
        gpus=gpus,
        bridged=row.flag("nvlink_bridge"),
        samples_per_s=samples_per_s,
        batch=batch / gpus if batch else None,
    )


def cluster_job_setup(row: TableRow, gpu: Gpu) -> ClusterJobSetup:
    """A job of a shared cluster."""
    placement = row.text("placement", "packed").lower()
    if placement not in ("packed", "spread"):
        raise row.error(f"placement {placement!r} is not known. Give packed or spread.")
    name = row.name("model")
    job = _listed(name, TOTALS) or name
    return ClusterJobSetup(
        device=device_of(gpu, "ieee"),
        job=job,
        totals=TOTALS.get(job),
        batch=row.number_of("batch_size"),
        gpus=row.count("n_gpus", 1),
        placement=placement,
        table=row.text("table", "simulation").lower(),
    )


def llm_setup(row: TableRow, gpu: Gpu) -> LlmSetup:
    """A language model; FP32 without TF32, as such tables are measured."""
    name = row.name("model").lower()
    listed = _listed(name, LANGUAGE_MODELS)
    if listed is None:
        near = nearest_names(name, LANGUAGE_MODELS)
        hint = f" Did you mean {' or '.join(near)}?" if near else f" Known are {', '.join(LANGUAGE_MODELS)}."
        raise row.error(f"no language model is called {name!r}.{hint}")
    mode = row.text("mode", "train").lower()
    if mode not in ("train", "inf"):
        raise row.error(f"mode {mode!r} is not known. Give train or inf.")
    option = row.text("option").lower()
    try:
        parallel(option)
    except InputError as error:
        raise row.error(str(error)) from None
    return LlmSetup(
        device=device_of(gpu, "ieee"),
        model=LANGUAGE_MODELS[listed],
        sequence=row.count("seqlen", 0) or int(row.required("seqlen")),
        batch=row.required("batch"),
        training=mode == "train",
        option=option,
    )
