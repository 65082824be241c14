"""`stallwise study`: how a network's size and shape make its stall, measured on links of several rates."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli.output import Exit, Json, answer
from stallwise.errors import InputError

if TYPE_CHECKING:
    from stallwise.record import study as studies


def study(
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of the study; one that was stopped goes on.")] = Path(
        "study"
    ),
    networks: Annotated[
        str | None, typer.Option("--networks", help="Names, as resnet18,vgg16. Default: 20 of seven families.")
    ] = None,
    rates: Annotated[
        str, typer.Option("--rates", help="Link rates to shape; as-is: between processes here, unshaped.")
    ] = "250mbit,500mbit,1gbit",
    processes: Annotated[str, typer.Option("--processes", help="Numbers of processes, each a host: 2,4.")] = "2",
    scale: Annotated[
        int, typer.Option("--scale", help="One in so many elements of each gradient, and buckets as much smaller.")
    ] = 8,
    batch: Annotated[int, typer.Option("--batch", help="Images a step computes for, on a GPU of 10 TFLOP/s.")] = 16,
    rounds: Annotated[
        int,
        typer.Option(
            "--rounds",
            help="Turns of steps with and without exchange; up to five times as many where stalls are small.",
        ),
    ] = 3,
    steps: Annotated[int, typer.Option("--steps", help="Steps of a turn that count.")] = 2,
    quick: Annotated[bool, typer.Option("--quick", help="Eight networks, one turn: to see that it works.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Measure nothing; show what the folder holds.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Also write a page here.")] = None,
    as_json: Json = False,
) -> None:
    """Measure the communication stall of many networks, and fit it to their tensors, layers and bytes, link by link.

    Networks run on the stand-in accelerator: their layers sleep as long as a GPU would compute, their gradients are
    exchanged for real by DDP over gloo, between hosts on this machine whose links are shaped (needs root). Families
    are held out one by one and predicted from the others. Exit code 0: done. 1: stopped before the end; the same
    command goes on. 2: it cannot be, and one sentence says why.
    """
    from stallwise.record import study as studies
    from stallwise.report.study import document, draw

    if show:
        found = studies.read_study(out)
    else:
        settings = studies.Settings(
            networks=_words(networks) if networks else (studies.QUICK if quick else studies.FULL),
            rates=_words(rates),
            processes=_counts(processes),
            scale=scale,
            batch=batch,
            rounds=1 if quick else rounds,
            steps=steps,
        )
        found = _run(settings, out)
    answer(lambda: document(found), lambda: draw(found), as_json=as_json)
    if html is not None:
        from stallwise.report.study_html import write_page

        typer.echo(f"\nThe page is {write_page(found, html)}", err=True)


def _run(settings: "studies.Settings", out: Path) -> "studies.Study":
    from stallwise.cli.progress import Teller
    from stallwise.record.study import run_study

    try:
        with Teller() as teller:
            return run_study(settings, out, teller.tell)
    except KeyboardInterrupt:
        typer.echo(f"Stopped. What was measured is in {out}; the same command goes on from there.", err=True)
        raise typer.Exit(Exit.NO) from None


def _words(text: str) -> tuple[str, ...]:
    found = tuple(word.strip() for word in text.split(",") if word.strip())
    if not found:
        raise InputError(f"{text!r} names nothing; give words with commas between them.")
    return tuple(dict.fromkeys(found))


def _counts(text: str) -> tuple[int, ...]:
    words = _words(text)
    if not all(word.isdigit() for word in words):
        raise InputError(f"--processes takes whole numbers such as 2,4, not {text!r}.")
    return tuple(int(word) for word in words)
