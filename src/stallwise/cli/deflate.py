"""`stallwise deflate`: what a job would do with less, taking it, and giving it back."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli.output import Json, answer, no
from stallwise.errors import InputError

if TYPE_CHECKING:
    from stallwise.deflate.act import Amount
    from stallwise.model.deflation import Kept, Pressure, Response


def deflate(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN|PID|CGROUP]",
            help="A run: what would happen. A process with all below it, or a control group: do it. Nothing: list.",
        ),
    ] = None,
    cpu: Annotated[str | None, typer.Option("--cpu", help="What to leave: 50% of its cores, or 1.5 cores.")] = None,
    memory: Annotated[str | None, typer.Option("--memory", help="What to leave: 50%, or 8GiB.")] = None,
    bandwidth: Annotated[str | None, typer.Option("--bandwidth", help="For a RUN: what to leave, 50%.")] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="For a RUN: share of the GPU to leave, 50%.")] = None,
    batch: Annotated[
        str | None,
        typer.Option("--batch", help="Ask ranks for a part of the batch as for this speed: 50%. Default: by --cpu."),
    ] = None,
    period: Annotated[str, typer.Option("--period", help="Of the CPU quota, 1ms to 1s.")] = "10ms",
    lasts: Annotated[
        str | None, typer.Option("--for", help="Undo after this time; for a RUN: how long the pressure lasts.")
    ] = None,
    restart: Annotated[
        str, typer.Option("--restart", help="For a RUN: from a machine's return until its rank trains.")
    ] = "3min",
    again: Annotated[str, typer.Option("--again", help="For a RUN: training done again after losing a rank.")] = "0s",
    dataset: Annotated[str | None, typer.Option("--dataset", help="For a RUN: size of the data, for --memory.")] = None,
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
        if undo or not cooperative or any(said is not None for said in (cpu, memory, bandwidth, gpu, batch, lasts)):
            raise InputError("Say whom: a RUN, a PID or a CGROUP, before the options. Without any of them it lists.")
        _list(as_json)
    elif undo:
        _undo(target)
    elif not target.isdigit() and (Path(target) / "manifest.json").exists():
        if batch is not None or not cooperative:
            raise InputError("--batch and --no-cooperative are for a PID or CGROUP. Of a RUN both ways are shown.")
        kept = {"cpu": cpu, "memory": memory, "bandwidth": bandwidth, "gpu": gpu}
        _plan(Path(target), kept, _pressure(lasts, restart, again), dataset, as_json)
    else:
        if bandwidth is not None or gpu is not None:
            raise InputError(
                "--bandwidth and --gpu are for a RUN: no control group takes them. --batch asks the ranks."
            )
        if cpu is None and memory is None and batch is None:
            raise InputError("Say what to leave it: --cpu 50%, --memory 8GiB, --batch 50%; or --undo.")
        _act(target, cpu, memory, batch, period, lasts, cooperative=cooperative, as_json=as_json)


def _list(as_json: bool) -> None:
    from stallwise.deflate import act, journal
    from stallwise.report.deflate import draw_list

    act.sweep()
    found = tuple(journal.all_of_them())
    answer(lambda: found, lambda: draw_list(found), as_json=as_json)


def _undo(target: str) -> None:
    from stallwise.deflate import act

    said = act.undo(target)
    for sentence in said:
        typer.echo(sentence, err=True)
    typer.echo(f"{target} has back what there is." if said else f"{target} has everything back.")


def _act(
    target: str,
    cpu: str | None,
    memory: str | None,
    batch: str | None,
    period: str,
    lasts: str | None,
    *,
    cooperative: bool,
    as_json: bool,
) -> None:
    from stallwise.deflate import act
    from stallwise.report.deflate import draw_done
    from stallwise.units import parse_bytes, parse_seconds, parse_share

    want = act.Want(
        cpu=None if cpu is None else _amount("--cpu", cpu, float),
        memory=None if memory is None else _amount("--memory", memory, parse_bytes),
        speed=None if batch is None else _some("--batch", parse_share(batch)),
        cooperative=cooperative,
        period_us=round(parse_seconds(period) * 1e6),
        for_s=None if lasts is None else parse_seconds(lasts),
    )
    try:
        done = act.deflate(target, want, tell=lambda sentence: typer.echo(sentence, err=True))
    except act.GoneError as error:
        raise no(str(error)) from None
    answer(lambda: done, lambda: draw_done(done), as_json=as_json)


def _amount(name: str, text: str, read: object) -> "Amount":
    from stallwise.deflate.act import Amount
    from stallwise.units import parse_bytes, parse_share

    if text.strip().endswith("%"):
        return Amount(part=_some(name, parse_share(text)))
    if read is parse_bytes:
        return Amount(amount=_some(name, parse_bytes(text)))
    try:
        return Amount(amount=_some(name, float(text)))
    except ValueError:
        raise InputError(f"{name} takes a part like 50% or a number of cores like 1.5, not {text!r}.") from None


def _some(name: str, value: float) -> float:
    if not 0 < value < float("inf"):
        raise InputError(f"{name} must leave something: more than 0.")
    return value


def _kept(said: dict[str, str | None], response: "Response") -> "Kept | None":
    """What is left of each resource, by the same words as for a process: a part, or an amount of cores or memory."""
    from stallwise.model.deflation import Kept
    from stallwise.units import parse_bytes, parse_share

    had = {"cpu": response.cores, "memory": None if response.memory is None else response.memory.bytes}
    parts = {}
    for name, text in said.items():
        if text is None:
            continue
        whole = had.get(name)
        if whole is None and name == "memory":
            response.curve("memory", ())  # says why not
        if whole is None:
            parts[name] = _some(f"--{name}", parse_share(text))
        else:
            parts[name] = _amount(f"--{name}", text, parse_bytes if name == "memory" else float).of(whole) / whole
    return Kept(**parts) if parts else None


def _pressure(lasts: str | None, restart: str, again: str) -> "Pressure | None":
    from stallwise.model.deflation import Pressure
    from stallwise.units import parse_seconds

    if lasts is None:
        return None
    return Pressure(lasts_s=parse_seconds(lasts), restart_s=parse_seconds(restart), again_s=parse_seconds(again))


def _plan(
    path: Path, said: dict[str, str | None], pressure: "Pressure | None", dataset: str | None, as_json: bool
) -> None:
    from stallwise.deflate.response import outlook_of, response_of
    from stallwise.report.deflate import draw_outlook
    from stallwise.run.reader import Run
    from stallwise.units import parse_bytes

    if pressure is not None and not any(said.values()):
        raise InputError("--for asks whether to deflate: say by how much, with --cpu, --memory, --bandwidth or --gpu.")
    response = response_of(Run.open(path), None if dataset is None else parse_bytes(dataset))
    found = outlook_of(response, _kept(said, response), pressure)
    answer(lambda: found, lambda: draw_outlook(found), as_json=as_json)
