"""The program as another user, who need not be able to read this Python: everything is loaded before root is given up.

python -m tests.slurm.operating USER schedule --partition …
"""

import contextlib
import os
import pwd
import sys

from tests.slurm.killing import load


def _rehearse(arguments: list[str]) -> None:
    """One refused call loads what the command line itself needs."""
    from stallwise.cli.main import run
    from stallwise.slurm import actions, controller, metrics, snapshot, state  # noqa: F401

    sys.argv = ["stallwise", *arguments, "--engine", "none"]
    with contextlib.suppress(SystemExit):
        run()


def main(user: str, arguments: list[str]) -> None:
    load()
    _rehearse(arguments)
    account = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)
    from stallwise.cli.main import run

    sys.argv = ["stallwise", *arguments]
    run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
