"""`stallwise submit`: sbatch for a partition that `stallwise schedule` runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand

from stallwise.errors import InputError

if TYPE_CHECKING:
    from typer._click.core import Context

    from stallwise.slurm.ask import Ask

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


class Submit(TyperCommand):
    """Takes its own options out of the words before the script; every other word goes to sbatch untouched.

    Left to itself the parser would look into a cluster of short options for letters it knows, and take `-Jpretrain`
    for a job J in the partition `retrain`.
    """

    def parse_args(self, ctx: "Context", args: list[str]) -> list[str]:
        """Ours first, then a mark, then everything else as it stands."""
        takes = {
            name: 0 if getattr(option, "is_flag", False) else option.nargs
            for option in self.get_params(ctx)
            for name in option.opts
            if name.startswith("-")
        }
        ours: list[str] = []
        theirs: list[str] = []
        left = list(args)
        while left and left[0].startswith("-") and left[0] != "--":
            name, equals, _ = left[0].partition("=")
            short = left[0][:2] if not name.startswith("--") else ""
            if name in takes:
                count = 1 if equals else 1 + takes[name]
            elif takes.get(short):
                count = 1  # its value is glued to it: -pgpu
            else:
                theirs.append(left.pop(0))
                continue
            ours += left[:count]
            del left[:count]
        rest = left[1:] if left[:1] == ["--"] else left
        return super().parse_args(ctx, [*ours, "--", *theirs, *rest])


def submit(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SBATCH OPTIONS] SCRIPT [ARGS]…", help="Goes to sbatch as it is; the options below come first."
        ),
    ] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", help="GPUs of the gang.")] = None,
    nodes: Annotated[str | None, typer.Option("--nodes", help="Node range; default: 1 to one per GPU.")] = None,
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", envvar="STALLWISE_PARTITION", help="Where to.")
    ] = None,
    run: Annotated[Path | None, typer.Option("--run", help="A run of this job: its sensitivity is predicted.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="A network by name; jobs of one name learn from each other.")
    ] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="With --model: the cluster's GPU, as V100.")] = None,
    batch: Annotated[int, typer.Option("--batch", help="With --model: samples per GPU and step.")] = 32,
    tokens: Annotated[int | None, typer.Option("--tokens", help="With --model: length of a sequence.")] = None,
    speeds: Annotated[
        str | None,
        typer.Option("--speeds", help="Speed inside a machine, inside a rack, beyond: 1,0.9,0.6."),
    ] = None,
    record: Annotated[
        Path | None, typer.Option("--record", help="Folder the job writes its run records to; speeds are learned.")
    ] = None,
    gpu_link: Annotated[
        str, typer.Option("--gpu-link", envvar="STALLWISE_GPU_LINK", help="Between GPUs of a machine.")
    ] = "300GB/s",
    machine_link: Annotated[
        str, typer.Option("--machine-link", envvar="STALLWISE_MACHINE_LINK", help="Between machines of a rack.")
    ] = "100gbit",
    rack_link: Annotated[
        str, typer.Option("--rack-link", envvar="STALLWISE_RACK_LINK", help="Between racks, per machine.")
    ] = "25gbit",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the sbatch command and submit nothing.")] = False,
) -> None:
    """Submit a job held, with what it says about its sensitivity to placement; everything else is sbatch's.

    Exit code 0: submitted, with sbatch's own words on stdout. 2: refused, by sbatch or before.
    """
    import shlex

    from stallwise.slurm.submit import sbatch_words
    from stallwise.slurm.submit import submit as to_slurm

    ask = _ask(run, model, speeds, gpus, partition, (gpu, batch, tokens), (gpu_link, machine_link, rack_link))
    if record is not None:
        import msgspec

        ask = msgspec.structs.replace(ask, record=str(record.resolve()))
    command = sbatch_words(ask, words or (), gpus=gpus, nodes=nodes, partition=partition)
    if dry_run:
        typer.echo(shlex.join(command))
        return
    typer.echo(to_slurm(command))


def _ask(
    run: Path | None,
    model: str | None,
    speeds: str | None,
    gpus: int | None,
    partition: str | None,
    how: tuple[str | None, int, int | None],
    links: tuple[str, str, str],
) -> "Ask":
    from stallwise.slurm.ask import Ask

    if run is not None and speeds is not None:
        raise InputError("--run and --speeds say the same thing. Give one of them.")
    if speeds is not None:
        return Ask(speeds=_numbers(speeds), model=model)
    if run is None and (model is None or how[0] is None):
        return Ask(model=model)
    if gpus is None or partition is None:
        raise InputError("How much a job suffers depends on its gang and the cluster: give --gpus and --partition.")
    return _predicted(run, model, gpus, partition, how, links)


def _predicted(
    run: Path | None,
    model: str | None,
    gpus: int,
    partition: str,
    how: tuple[str | None, int, int | None],
    links: tuple[str, str, str],
) -> "Ask":
    import msgspec

    from stallwise.slurm.commands import Slurm
    from stallwise.slurm.controller import check_partition
    from stallwise.slurm.sensitivity import Links, Named, ask_of_name, ask_of_run
    from stallwise.units import parse_rate

    cluster = check_partition(Slurm(), partition).cluster
    inside, machines, racks = (parse_rate(text) for text in links)
    joined = Links(gpu_bytes_per_s=inside, machine_bytes_per_s=machines, rack_bytes_per_s=racks)
    if run is not None:
        ask = ask_of_run(run, gpus, cluster, joined)
        return msgspec.structs.replace(ask, model=model) if model is not None else ask
    named = Named(model=model or "", gpu=how[0] or "", batch=how[1], tokens=how[2])
    return ask_of_name(named, gpus, cluster, joined)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(piece) for piece in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(0 < value <= 1 for value in found) or len(found) > 8:
        raise InputError(f"--speeds takes numbers above 0 and up to 1 with commas between, not {text!r}.")
    return found
