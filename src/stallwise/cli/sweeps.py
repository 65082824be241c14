"""How `stallwise simulate` runs its simulations: which engine, where they are kept, and what is said meanwhile."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import typer

from stallwise.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from stallwise.cluster.sweep import Engine, Run, Sweep

ENGINES = ("local", "ray")
# No simulation has told of itself for so long: nothing but compiling takes that, or a Ray cluster that is busy.


def engine_of(name: str, address: str | None, cores: int | None) -> "Engine":
    """An engine by its name."""
    from stallwise.cluster.engines.local import Local
    from stallwise.cluster.sweep import cores_here

    if name == "local":
        if address is not None:
            raise InputError("--address is that of a Ray cluster. Give --engine ray too, or leave it out.")
        return Local(cores or cores_here())
    if name == "ray":
        from stallwise.cluster.engines.on_ray import OnRay, ray_package

        ray_package()  # say at once that it is missing, not after a trace was read
        return OnRay(cores, address or os.environ.get("RAY_ADDRESS") or None)
    raise UnknownNameError(f"engine ({', '.join(ENGINES)})", name, ENGINES)


def simulated(sweep: "Sweep", engine: "Engine", results: Path | None) -> "list[Run]":
    """All of it, with progress on stderr, and a word where the first call of all compiles the simulator."""
    from stallwise.cli.progress import Teller, while_compiling
    from stallwise.cluster.results import Results
    from stallwise.cluster.sweep import run_sweep

    if results is not None and sweep.keep:
        raise InputError("--jobs needs every simulation whole, and --results keeps figures only. Leave out one.")
    journal = contextlib.nullcontext() if results is None else Results(results, _say)
    with journal as kept, Teller() as teller, while_compiling() as begun, _ended_by_sigterm():

        def tell(what: str, done: int, of: int) -> None:
            begun()
            teller.tell(what, done, of)

        return run_sweep(sweep, tell, engine=engine, journal=kept)


def _say(sentence: str) -> None:
    typer.echo(f"stallwise: {sentence}", err=True)


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Batch systems end a job with SIGTERM: workers are to be ended then as after Ctrl-C."""

    ended = 0

    def leave(number: int, _: FrameType | None) -> None:
        nonlocal ended
        ended = 128 + number
        raise SystemExit(ended)

    try:
        before = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    except BaseException:
        if ended:  # Ray, interrupted while it waits, makes something else of it
            raise SystemExit(ended) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
