"""Controllers forked from a process that has everything loaded: a dozen of them start in a test run, and on two busy
cores imports and compiled kernels would be most of what they do. What is forked is the program's own entry.

`stallwise` started the plain way is tested too, by every test that uses `Site.program`.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path


def context() -> ForkServerContext:
    """Where they come from; `ready` is imported once, in the server."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["tests.slurm.ready"])
    return made


@dataclass
class Program:
    """A running program."""

    process: ForkServerProcess
    errors: Path

    @property
    def said(self) -> str:
        """On stderr, until now."""
        return self.errors.read_text() if self.errors.exists() else ""

    @property
    def ended(self) -> bool:
        return self.process.exitcode is not None

    def stop(self, timeout_s: float) -> int | None:
        """TERM; its exit code, None where it did not end."""
        if not self.ended and self.process.pid is not None:
            os.kill(self.process.pid, signal.SIGTERM)
        self.process.join(timeout_s)
        code = self.process.exitcode
        if code is None:
            self.process.kill()
            self.process.join(timeout_s)
        return code


def start(arguments: Sequence[str], environment: Mapping[str, str], errors: Path) -> Program:
    """`stallwise ARGUMENTS…` with that environment; what it says on stderr goes into a file."""
    process = context().Process(target=_run, args=(list(arguments), dict(environment), str(errors)), daemon=True)
    process.start()
    return Program(process, errors)


def _run(arguments: list[str], environment: dict[str, str], errors: str) -> None:
    from stallwise.cli.main import run

    os.environ.clear()
    os.environ.update(environment)
    for number, path in ((1, os.devnull), (2, errors)):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, number)
        os.close(handle)
    sys.argv = ["stallwise", *arguments]
    run()
