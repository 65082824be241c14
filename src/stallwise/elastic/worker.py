"""Starts a rank: `python -m stallwise.elastic.worker script.py …`. It dies with its agent and hears SIGTERM at once.

Nothing heavy is imported before both are settled.
"""

import os
import runpy
import sys
import traceback
from collections.abc import Sequence

from stallwise.elastic.codes import AGENT, Left
from stallwise.elastic.notice import catch_signal
from stallwise.record.processes import die_with_parent


def main(arguments: Sequence[str]) -> None:
    """Run the script, or `-m module`, as python itself would."""
    settle()
    run(list(arguments))


def settle() -> None:
    """End with the agent, also where it died before this could be asked for."""
    die_with_parent()
    agent = os.environ.get(AGENT)
    if agent is not None and os.getppid() != int(agent):
        os._exit(1)
    catch_signal()


def run(arguments: list[str]) -> None:
    """As `python script.py …` or `python -m module …`.

    A peer may be lost before the session is entered, or after it: while ranks meet, while DDP compares its parameters.
    """
    try:
        _as_python_does(arguments)
    except Exception as error:
        from stallwise.elastic.leaving import leave_now, peer_lost

        if peer_lost(error):
            traceback.print_exc()
            leave_now(Left.PEER_LOST)
        raise


def _as_python_does(arguments: list[str]) -> None:
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = ""
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = arguments
    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))  # noqa: PTH100, PTH120 - as python does
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
