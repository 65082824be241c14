"""`stallwise trace import|show|export`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli.commands import CommandApp
from stallwise.cli.output import Json, answer
from stallwise.errors import InputError

if TYPE_CHECKING:
    from stallwise.analysis.traces.import_ import TraceHints
    from stallwise.report.perfetto import ExportedTrace
    from stallwise.report.views.trace import WrittenLayers
    from stallwise.run.manifest import Manifest

app = CommandApp(name="trace", help="Other profilers' traces as runs, and runs as traces.")

Batch = Annotated[int | None, typer.Option("--batch", metavar="N", help="Samples per GPU and step: 64.")]
PerNode = Annotated[
    int | None, typer.Option("--gpus-per-node", help="GPUs of one machine. Default: as many as the trace lists.")
]
WorldSize = Annotated[
    int | None,
    typer.Option("--world-size", help="Ranks of the job, where the trace does not say or ranks are missing."),
]


@app.command("import")
def import_trace(
    traces: Annotated[
        list[Path],
        typer.Argument(metavar="FILE|FOLDER", help="Traces, one file per rank; or a folder of them."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="RUN", help="Folder to make; must not hold a run.")],
    name: Annotated[
        str | None, typer.Option("--name", help="What the run is called. Default: the file's name.")
    ] = None,
    batch: Batch = None,
    gpus_per_node: PerNode = None,
    world_size: WorldSize = None,
    as_json: Json = False,
) -> None:
    """Make a run of torch.profiler (Kineto) traces, Chakra traces, or a layer file; plain or gzip.

    Ranks may be missing. The first traced step is not kept where there are more. Exit code 0: imported. 2: a file
    cannot be used; stderr says which and why.
    """
    from stallwise.analysis.traces.import_ import TraceHints

    hints = TraceHints(name=name, samples=batch, gpus_per_node=gpus_per_node, world_size=world_size)
    manifest = _imported(traces, out, hints)
    answer(lambda: manifest, lambda: _imported_words(manifest, out), as_json=as_json)


@app.command("show")
def show(
    traces: Annotated[
        list[Path],
        typer.Argument(metavar="RUN|FILE|FOLDER", help="An imported run; or traces, read and shown only."),
    ],
    gpus_per_node: PerNode = None,
    as_json: Json = False,
) -> None:
    """How each rank's device spent its time, the critical path over all ranks, stragglers and data-loader wait.

    Compute, communication, overlap and idle are HolisticTraceAnalysis' figures. Exit code 0: shown. 2: a file cannot be
    used; stderr says which and why.
    """
    import tempfile

    from stallwise.analysis.traces.import_ import TraceHints
    from stallwise.analysis.traces.view import view_of
    from stallwise.report.views.trace import draw_trace
    from stallwise.run.reader import Run

    if len(traces) == 1 and (traces[0] / "manifest.json").is_file():
        view = view_of(Run.open(traces[0]))
    else:
        _require_ranks(traces)
        with tempfile.TemporaryDirectory(prefix="stallwise-") as folder:
            _imported(traces, Path(folder) / "run", TraceHints(gpus_per_node=gpus_per_node))
            view = view_of(Run.open(Path(folder) / "run"))
    answer(lambda: view, lambda: draw_trace(view), as_json=as_json)


@app.command("export")
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="File to write. Default: trace.json.gz in the run's folder, or layers.json with --layers.",
        ),
    ] = None,
    ranks: Annotated[
        list[int] | None, typer.Option("--rank", metavar="N", help="Only this rank; may be given again. Default: all.")
    ] = None,
    layers: Annotated[
        bool, typer.Option("--layers", help="One GPU's step layer by layer, to simulate from, instead of a timeline.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the timeline of a run for ui.perfetto.dev and chrome://tracing, or its layers as JSON for simulators."""
    from stallwise.run.reader import Run

    if layers:
        if ranks:
            raise InputError("A layer file stands for every rank; leave --rank out, or export a timeline.")
        from stallwise.report.views.trace import export_layers

        written = export_layers(Run.open(run), out or run / "layers.json")
        answer(lambda: written, lambda: _layer_words(written), as_json=as_json)
        return
    from stallwise.report.perfetto import export as export_run

    written_trace = export_run(Run.open(run), out or run / "trace.json.gz", tuple(ranks or ()))
    answer(lambda: written_trace, lambda: _words(written_trace), as_json=as_json)


def _imported(paths: list[Path], out: Path, hints: "TraceHints") -> "Manifest":
    from stallwise.analysis.traces.import_ import write_run
    from stallwise.run.traces.files import find_traces, read_traces

    if (out / "manifest.json").exists():
        raise InputError(f"{out} already holds a run. Choose another folder with -o, or remove it first.")
    files = find_traces(paths)
    if _is_layer_file(files):
        return _imported_layers(files[0], out, hints)
    return write_run(read_traces(files), out, hints)


def _require_ranks(paths: list[Path]) -> None:
    from stallwise.run.traces.files import find_traces

    files = find_traces(paths)
    if _is_layer_file(files):
        raise InputError(
            f"{files[0]} is a layer file: one step without ranks, so there is nothing to show of them. Use stallwise "
            "whatif, or import it and use stallwise report."
        )


def _is_layer_file(files: list[Path]) -> bool:
    from stallwise.inputs import read_first
    from stallwise.run.traces.layer_document import FORMAT

    return len(files) == 1 and FORMAT.encode() in read_first(files[0], 4096)


def _imported_layers(path: Path, out: Path, hints: "TraceHints") -> "Manifest":
    from stallwise.analysis.traces.layers import write_layer_run
    from stallwise.run.traces.layer_document import read_layer_file

    return write_layer_run(read_layer_file(path), path, out, hints)


def _imported_words(manifest: "Manifest", out: Path) -> str:
    from rich.markup import escape

    counts, folder = manifest.counts, escape(str(out))
    steps = f"{counts.steps} step{'' if counts.steps == 1 else 's'}"
    ranks = f"{counts.ranks_seen} of {counts.ranks_expected} ranks"
    traced = manifest.job.launcher == "trace"
    lines = [f"{folder}: {f'{steps} of {ranks}' if traced else 'one step, layer by layer'}."]
    lines += [escape(f"- {note}") for note in manifest.notes]
    nexts = ["trace show", "report", "whatif"] if traced else ["report", "whatif"]
    lines.append(f"Next: {', '.join(f'stallwise {command} {folder}' for command in nexts)}.")
    return "\n".join(lines)


def _layer_words(written: "WrittenLayers") -> str:
    from rich.markup import escape

    from stallwise.report.format import show_bytes

    return f"{escape(str(written.path))}: {written.layers} layers, {show_bytes(written.gradient_bytes)} of gradients."


def _words(written: "ExportedTrace") -> str:
    from rich.markup import escape

    count = len(written.ranks)
    what = f"{written.events:,} events of {count} {'rank' if count == 1 else 'ranks'}"
    return f"{escape(str(written.path))}: {what}. Open it at ui.perfetto.dev (nothing is uploaded) or chrome://tracing."
