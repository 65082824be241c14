"""`stallwise queue`: why each job of a scheduled partition waits, and for how long at most."""

import time
from typing import Annotated

import typer

from stallwise.cli.output import Json, answer, warn
from stallwise.cli.schedule import STATE, State

_MISSED = 5


def queue(
    state: State = STATE,
    mine: Annotated[str | None, typer.Option("--user", "-u", help="Only jobs of this user.")] = None,
    as_json: Json = False,
) -> None:
    """Show the jobs that `stallwise schedule` knows: where they run, or why they wait and until when at most.

    Exit code 0: shown; a warning on stderr where the controller has not been heard of for a while. 2: there is none.
    """
    import msgspec

    from stallwise.slurm.snapshot import read_snapshot

    found = read_snapshot(state)
    if mine is not None:
        found = msgspec.structs.replace(found, jobs=tuple(job for job in found.jobs if job.user == mine))
    silent_s = time.time() - found.time_s
    if silent_s > max(30.0, _MISSED * found.interval_s):
        warn(f"the controller of partition {found.partition} was last heard of {silent_s:.0f} s ago.")

    def draw() -> object:
        from stallwise.report.queue import draw

        return draw(found, time.time())

    answer(lambda: msgspec.to_builtins(found), draw, as_json=as_json)
