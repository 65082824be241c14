"""`stallwise deflate`: what a job would do with less, taking it, and giving it back."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli.output import Json, answer, fail
from stallwise.errors import InputError

if TYPE_CHECKING:
    from stallwise.deflate.act import Amount
    from stallwise.model.deflation import DeflationResponse, Pressure, ResourceFractions


def deflate(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN|PID|CGROUP",
            help="A run: what would happen. A process with all below it, or a control group: do it. Nothing: list.",
        ),
    ] = None,
    *,
    cpu: Annotated[
        str | None,
        typer.Option("--cpu", metavar="PERCENT|CORES", help="What to leave: 50% of its cores, or 1.5cores."),
    ] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="PERCENT|SIZE", help="What to leave: 50%, or 8GiB.")
    ] = None,
    bandwidth: Annotated[
        str | None, typer.Option("--bandwidth", metavar="PERCENT", help="For a RUN: network bandwidth to leave, 50%.")
    ] = None,
    gpu_share: Annotated[
        str | None, typer.Option("--gpu-share", metavar="PERCENT", help="For a RUN: share of the GPU to leave, 50%.")
    ] = None,
    speed: Annotated[
        str | None,
        typer.Option(
            "--speed",
            metavar="PERCENT",
            help="Ask ranks for a part of the batch as fits this speed: 50%. Default: as --cpu takes.",
        ),
    ] = None,
    period: Annotated[
        str, typer.Option("--period", metavar="TIME", help="Period of the CPU quota, 1ms to 1s.")
    ] = "10ms",
    lasts: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="Undo after this time; for a RUN: how long the pressure lasts."),
    ] = None,
    restart: Annotated[
        str,
        typer.Option("--restart", metavar="TIME", help="For a RUN: from a machine's return until its rank trains."),
    ] = "3min",
    again: Annotated[
        str,
        typer.Option("--again", metavar="TIME", help="For a RUN: training that is repeated after losing a rank."),
    ] = "0s",
    dataset_size: Annotated[
        str | None,
        typer.Option("--dataset-size", metavar="SIZE", help="For a RUN: size of the dataset, for --memory: 140GB."),
    ] = None,
    cooperative: Annotated[
        bool, typer.Option("--cooperative/--no-cooperative", help="Ask the job's own ranks to help.")
    ] = True,
    undo: Annotated[bool, typer.Option("--undo", help="Give everything back, exactly as it was.")] = False,
    as_json: Json = False,
) -> None:
    """Shrink a training job instead of killing it.

    Of a RUN: its step with less CPU, memory, bandwidth or GPU, its slack and its knee; with --for, whether to deflate
    or to lose a rank. Of a PID or CGROUP: limit it (control groups version 1 or 2), ask its ranks to take a smaller
    part of the global batch, and give it back with --undo.

    Exit code 0: done. 1: the process or control group is gone; nothing is left behind. 2: it cannot be done as asked
    (no rights, below the least quota, unusable input); nothing was changed.
    """
    if target is None:
        if (
            undo
            or not cooperative
            or any(value is not None for value in (cpu, memory, bandwidth, gpu_share, speed, lasts))
        ):
            raise InputError("Say whom: a RUN, a PID or a CGROUP, before the options. Without any of them it lists.")
        _list(as_json)
    elif undo:
        _undo(target, as_json=as_json)
    elif not target.isdigit() and (Path(target) / "manifest.json").exists():
        if speed is not None or not cooperative:
            raise InputError("--speed and --no-cooperative are for a PID or CGROUP. Of a RUN both ways are shown.")
        kept = {"cpu": cpu, "memory": memory, "bandwidth": bandwidth, "gpu": gpu_share}
        _plan(Path(target), kept, _pressure(lasts, restart, again), dataset_size, as_json)
    else:
        if bandwidth is not None or gpu_share is not None:
            raise InputError(
                "--bandwidth and --gpu-share are for a RUN: no control group takes them. --speed asks the ranks."
            )
        if cpu is None and memory is None and speed is None:
            _require_target(target)
            raise InputError("Say what to leave it: --cpu 50%, --memory 8GiB, --speed 50%; or --undo.")
        _act(target, cpu, memory, speed, period, lasts, cooperative=cooperative, as_json=as_json)


def _require_target(target: str) -> None:
    """Say that there is nothing of this name before saying what is missing to act on it."""
    from stallwise.deflate.cgroups import group_at

    if not target.isdigit():
        group_at(target, "cpu")


def _list(as_json: bool) -> None:
    from stallwise.deflate import act, journal
    from stallwise.report.views.deflate import draw_list

    act.sweep()
    records = tuple(journal.all_records())
    answer(lambda: records, lambda: draw_list(records), as_json=as_json)


def _undo(target: str, *, as_json: bool) -> None:
    from stallwise.deflate import act
    from stallwise.report.json import schema
    from stallwise.report.view import Paragraph, view

    problems = act.undo(target)
    for sentence in problems:
        typer.echo(sentence, err=True)
    answer(
        lambda: schema("deflation-undone") | {"target": target, "problems": list(problems)},
        lambda: view("", Paragraph(f"{target} has {'back what there is' if problems else 'everything back'}.")),
        as_json=as_json,
    )


def _act(
    target: str,
    cpu: str | None,
    memory: str | None,
    speed: str | None,
    period: str,
    lasts: str | None,
    *,
    cooperative: bool,
    as_json: bool,
) -> None:
    from stallwise.deflate import act
    from stallwise.report.views.deflate import draw_done
    from stallwise.units import parse_bytes, parse_seconds, parse_share

    request = act.DeflationRequest(
        cpu=None if cpu is None else _amount("--cpu", cpu, float),
        memory=None if memory is None else _amount("--memory", memory, parse_bytes),
        speed=None if speed is None else _some("--speed", parse_share(speed)),
        cooperative=cooperative,
        period_us=round(parse_seconds(period) * 1e6),
        for_s=None if lasts is None else parse_seconds(lasts),
    )
    try:
        done = act.deflate(target, request, notify=lambda sentence: typer.echo(sentence, err=True))
    except act.TargetGoneError as error:
        raise fail(str(error)) from None
    answer(lambda: done, lambda: draw_done(done), as_json=as_json)


def _amount(name: str, text: str, read: object) -> "Amount":
    from stallwise.deflate.act import Amount
    from stallwise.units import parse_bytes, parse_share

    plain = text.strip().lower()
    if plain.endswith("%"):
        return Amount(part=_some(name, parse_share(text)))
    if read is parse_bytes:
        return Amount(amount=_some(name, parse_bytes(text)))
    number = plain.removesuffix("cores").removesuffix("core").strip()
    try:
        cores = float(number)
    except ValueError:
        raise InputError(f"{name} takes a part like 50% or a number of cores like 1.5cores, not {text!r}.") from None
    if number == plain:
        raise InputError(f"{name} {text} has no unit. Type {number}% or {number}cores.")
    return Amount(amount=_some(name, cores))


def _some(name: str, value: float) -> float:
    if not 0 < value < float("inf"):
        raise InputError(f"{name} must leave something: more than 0.")
    return value


def _kept(texts: dict[str, str | None], response: "DeflationResponse") -> "ResourceFractions | None":
    """The fraction kept of each resource, given as for a process: a fraction, or an amount of cores or memory."""
    from stallwise.model.deflation import ResourceFractions
    from stallwise.units import parse_bytes, parse_share

    had = {"cpu": response.cores, "memory": None if response.memory is None else response.memory.bytes}
    parts = {}
    for name, text in texts.items():
        if text is None:
            continue
        whole = had.get(name)
        if whole is None and name == "memory":
            response.curve("memory", ())  # says why not
        if whole is None:
            parts[name] = _some("--gpu-share" if name == "gpu" else f"--{name}", parse_share(text))
        else:
            parts[name] = _amount(f"--{name}", text, parse_bytes if name == "memory" else float).of(whole) / whole
    return ResourceFractions(**parts) if parts else None


def _pressure(lasts: str | None, restart: str, again: str) -> "Pressure | None":
    from stallwise.model.deflation import Pressure
    from stallwise.units import parse_seconds

    if lasts is None:
        return None
    return Pressure(lasts_s=parse_seconds(lasts), restart_s=parse_seconds(restart), again_s=parse_seconds(again))


def _plan(
    path: Path, texts: dict[str, str | None], pressure: "Pressure | None", dataset: str | None, as_json: bool
) -> None:
    from stallwise.analysis.analysis import open_run
    from stallwise.deflate.response import outlook_of, response_of
    from stallwise.report.views.deflate import draw_outlook
    from stallwise.units import parse_bytes

    if pressure is not None and not any(texts.values()):
        raise InputError(
            "--for asks whether to deflate: say by how much, with --cpu, --memory, --bandwidth or --gpu-share."
        )
    response = response_of(open_run(path), None if dataset is None else parse_bytes(dataset))
    outlook = outlook_of(response, _kept(texts, response), pressure)
    answer(lambda: outlook, lambda: draw_outlook(outlook), as_json=as_json)
