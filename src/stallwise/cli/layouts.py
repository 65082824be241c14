"""`stallwise whatif CONFIG.json`: a transformer under a parallel layout, before anything is run."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stallwise.cli.output import answer
from stallwise.errors import InputError

if TYPE_CHECKING:
    from stallwise.analysis.layouts import LayoutRequest

_PANEL = "Layouts, of a transformer's configuration file"
Tensor = Annotated[int | None, typer.Option("--tp", metavar="N", help="Tensor-parallel GPUs.", rich_help_panel=_PANEL)]
Pipeline = Annotated[int | None, typer.Option("--pp", metavar="N", help="Pipeline stages.", rich_help_panel=_PANEL)]
Expert = Annotated[int | None, typer.Option("--ep", metavar="N", help="Expert-parallel GPUs.", rich_help_panel=_PANEL)]
Context = Annotated[
    int | None, typer.Option("--cp", metavar="N", help="Context-parallel GPUs.", rich_help_panel=_PANEL)
]
Zero = Annotated[
    int | None,
    typer.Option("--zero", metavar="STAGE", help="Sharding: 0, 1, 2, or 3 as FSDP.", rich_help_panel=_PANEL),
]
MicroBatch = Annotated[
    int | None,
    typer.Option("--micro-batch", metavar="N", help="Sequences of one pass of a replica.", rich_help_panel=_PANEL),
]
Sequence = Annotated[
    int | None,
    typer.Option("--sequence", metavar="N", help="Tokens of a sequence. Default: 4096.", rich_help_panel=_PANEL),
]
ActivationCheckpointing = Annotated[
    str | None,
    typer.Option(
        "--activation-checkpointing",
        metavar="HOW",
        help="none, selective or full. Default: full where it would not fit otherwise.",
        rich_help_panel=_PANEL,
    ),
]
BestLayout = Annotated[
    bool,
    typer.Option("--best-layout", help="Try every layout that fits; what is given stays.", rich_help_panel=_PANEL),
]
OPTIONS = ("tp", "pp", "ep", "cp", "zero", "micro_batch", "sequence", "activation_checkpointing", "best_layout")
_ALSO = ("run", "gpu", "gpus", "gpus_per_node", "network", "global_batch", "as_json", "optimizer")
_KINDS = ("none", "selective", "full")


def describes_transformer(path: Path) -> bool:
    """Whether this is a configuration file, not a run or another tool's layer file."""
    return path.suffix == ".json" and path.is_file() and _config(path) is not None


def answer_layout(path: Path, values: Mapping[str, Any]) -> None:
    """Answer `whatif` for a configuration file."""
    from stallwise.analysis.layouts import best_layouts, predict_layout
    from stallwise.hardware import load_catalog
    from stallwise.report.views import layouts as report

    refuse_others(path, values, (*OPTIONS, *_ALSO))
    request, catalog = _request(path, values), load_catalog()
    as_json = bool(values["as_json"])
    if values["best_layout"]:
        best = best_layouts(request, catalog)
        answer(lambda: report.best_document(request, best), lambda: report.draw_best(request, best), as_json=as_json)
        return
    prediction = predict_layout(request, catalog)
    answer(lambda: report.document(request, prediction), lambda: report.draw(request, prediction), as_json=as_json)


def refuse_others(
    path: Path, values: Mapping[str, Any], known: Collection[str], defaults: Mapping[str, Any] | None = None
) -> None:
    """Options that mean nothing for a configuration file are refused where they were given."""
    unset = (None, False)
    other = sorted(
        name for name, v in values.items() if name not in known and v not in (*unset, (defaults or {}).get(name))
    )
    if other:
        raise InputError(f"{path.name} is a model's configuration, for which this is not answered.", fields=other[:1])
    if str(values["optimizer"]) not in ("adam", "adamw"):
        raise InputError("Layouts are predicted with Adam's states alone.", fields=("optimizer",))


def described(path: Path, values: Mapping[str, Any]) -> "LayoutRequest":
    """A transformer, its batch and sequence, before GPUs are chosen."""
    if values["global_batch"] is None:
        raise InputError("A layout needs the sequences per step.", fields=("global_batch",))
    return _request(
        path, {**dict.fromkeys(OPTIONS), "network": None, "gpus_per_node": None, **values, "gpu": "", "gpus": 1}
    )


def refuse_layout(values: Mapping[str, Any]) -> None:
    """Layout options with a measured run are refused: its layout is its own."""
    given = [name for name in OPTIONS if values[name] is not None and values[name] is not False]
    if given:
        raise InputError(
            "Layouts are predicted for a transformer's configuration file (config.json), not for a measured run.",
            fields=given,
        )


def _request(path: Path, values: Mapping[str, Any]) -> "LayoutRequest":
    from stallwise.analysis.layouts import LayoutRequest
    from stallwise.units import parse_rate
    from stallwise.workload.transformer import from_config

    for name in ("gpu", "gpus", "global_batch"):
        if values[name] is None:
            raise InputError("A layout needs the GPU, their number, and the sequences per step.", fields=(name,))
    kind = values["activation_checkpointing"]
    if kind is not None and kind not in _KINDS:
        raise InputError(f"{kind!r} is not one of {', '.join(_KINDS)}.", fields=("activation_checkpointing",))
    network = values["network"]
    given = {
        "tensor": values["tp"],
        "pipeline": values["pp"],
        "expert": values["ep"],
        "context": values["cp"],
        "zero": values["zero"],
        "micro_batch": values["micro_batch"],
        "sequence": values["sequence"],
        "gpus_per_node": values["gpus_per_node"],
        "network_bytes_per_s": None if network is None else parse_rate(network),
        "checkpointing": kind,
    }
    return LayoutRequest(
        model=from_config(_config(path) or {}, path.stem if path.stem != "config" else path.absolute().parent.name),
        gpu=values["gpu"],
        gpus=values["gpus"],
        global_batch=values["global_batch"],
        **{name: value for name, value in given.items() if value is not None},
    )


def _config(path: Path) -> dict[str, Any] | None:
    import json

    from stallwise.inputs import read_text

    try:
        values = json.loads(read_text(path))
    except (ValueError, OSError, RecursionError):
        return None
    named = isinstance(values, dict) and {"hidden_size", "n_embd", "d_model", "dim", "text_config"} & values.keys()
    return values if named else None
