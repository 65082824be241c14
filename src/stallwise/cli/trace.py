"""`stallwise trace import|show|export`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli.output import Json, answer
from stallwise.errors import InputError

if TYPE_CHECKING:
    from stallwise.record.trace_run import Given
    from stallwise.report.trace import Exported
    from stallwise.report.trace_layers import WrittenLayers
    from stallwise.run.manifest import Manifest

app = typer.Typer(name="trace", help="Other profilers' traces as runs, and runs as traces.", no_args_is_help=True)

Samples = Annotated[int | None, typer.Option("--samples", help="Samples in a step of one rank.")]
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
        typer.Argument(metavar="FILE|FOLDER...", help="Traces, one file per rank; or a folder of them."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="RUN", help="Folder to make; must not hold a run.")],
    name: Annotated[
        str | None, typer.Option("--name", help="What the run is called. Default: the file's name.")
    ] = None,
    samples: Samples = None,
    gpus_per_node: PerNode = None,
    world_size: WorldSize = None,
    as_json: Json = False,
) -> None:
    """Make a run of torch.profiler (Kineto) traces, Chakra traces, or a layer file; plain or gzip.

    Ranks may be missing. The first traced step is not kept where there are more. Exit code 0: imported. 2: a file
    cannot be used, and one sentence says which and why.
    """
    from stallwise.record.trace_run import Given

    given = Given(name=name, samples=samples, gpus_per_node=gpus_per_node, world_size=world_size)
    found = _imported(traces, out, given)
    answer(lambda: found, lambda: _imported_words(found, out), as_json=as_json)


@app.command("show")
def show(
    traces: Annotated[
        list[Path],
        typer.Argument(metavar="RUN|FILE|FOLDER...", help="An imported run; or traces, read and shown only."),
    ],
    gpus_per_node: PerNode = None,
    as_json: Json = False,
) -> None:
    """How each rank's device spent its time, the critical path over all ranks, stragglers and data-loader wait.

    Compute, communication, overlap and idle are HolisticTraceAnalysis' figures. Exit code 0: shown. 2: a file cannot be
    used, and one sentence says which and why.
    """
    import tempfile

    from stallwise.record.trace_run import Given
    from stallwise.record.trace_view import view_of
    from stallwise.report.trace_show import draw_trace
    from stallwise.run.reader import Run

    if len(traces) == 1 and (traces[0] / "manifest.json").is_file():
        found = view_of(Run.open(traces[0]))
    else:
        _require_ranks(traces)
        with tempfile.TemporaryDirectory(prefix="stallwise-") as folder:
            _imported(traces, Path(folder) / "run", Given(gpus_per_node=gpus_per_node))
            found = view_of(Run.open(Path(folder) / "run"))
    answer(lambda: found, lambda: draw_trace(found), as_json=as_json)


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
        from stallwise.report.trace_layers import export_layers

        written = export_layers(Run.open(run), out or run / "layers.json")
        answer(lambda: written, lambda: _layer_words(written), as_json=as_json)
        return
    from stallwise.report.trace import export as export_run

    found = export_run(Run.open(run), out or run / "trace.json.gz", tuple(ranks or ()))
    answer(lambda: found, lambda: _words(found), as_json=as_json)


def _imported(paths: list[Path], out: Path, given: "Given") -> "Manifest":
    from stallwise.record.trace_run import write_run
    from stallwise.run.readers.trace_files import find_traces, read_traces

    if (out / "manifest.json").exists():
        raise InputError(f"{out} already holds a run. Choose another folder with -o, or remove it first.")
    files = find_traces(paths)
    if _is_layer_file(files):
        return _imported_layers(files[0], out, given)
    return write_run(read_traces(files), out, given)


def _require_ranks(paths: list[Path]) -> None:
    from stallwise.run.readers.trace_files import find_traces

    files = find_traces(paths)
    if _is_layer_file(files):
        raise InputError(
            f"{files[0]} is a layer file: one step without ranks, so there is nothing to show of them. Use stallwise "
            "whatif, or import it and use stallwise report."
        )


def _is_layer_file(files: list[Path]) -> bool:
    from stallwise.run.readers.kineto_events import read_first
    from stallwise.run.readers.layer_file import FORMAT

    return len(files) == 1 and FORMAT.encode() in read_first(files[0], 4096)


def _imported_layers(path: Path, out: Path, given: "Given") -> "Manifest":
    from stallwise.record.layer_run import write_layer_run
    from stallwise.run.readers.layer_file import read_layer_file

    return write_layer_run(read_layer_file(path), path, out, given)


def _imported_words(found: "Manifest", out: Path) -> str:
    from rich.markup import escape

    counts, folder = found.counts, escape(str(out))
    steps = f"{counts.steps} step{'' if counts.steps == 1 else 's'}"
    ranks = f"{counts.ranks_seen} of {counts.ranks_expected} ranks"
    traced = found.job.launcher == "trace"
    lines = [f"{folder}: {f'{steps} of {ranks}' if traced else 'one step, layer by layer'}."]
    lines += [escape(f"- {note}") for note in found.notes]
    nexts = ["trace show", "report", "whatif"] if traced else ["report", "whatif"]
    lines.append(f"Next: {', '.join(f'stallwise {command} {folder}' for command in nexts)}.")
    return "\n".join(lines)


def _layer_words(found: "WrittenLayers") -> str:
    from rich.markup import escape

    from stallwise.report.text import show_bytes

    return f"{escape(str(found.path))}: {found.layers} layers, {show_bytes(found.gradient_bytes)} of gradients."


def _words(found: "Exported") -> str:
    from rich.markup import escape

    count = len(found.ranks)
    what = f"{found.events:,} events of {count} {'rank' if count == 1 else 'ranks'}"
    return f"{escape(str(found.path))}: {what}. Open it at ui.perfetto.dev (nothing is uploaded) or chrome://tracing."
