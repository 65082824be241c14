"""Imported in the server of `forkserver.py`: loads the program and its kernels."""

from stallwise.cli import slurm as schedule  # noqa: F401
from stallwise.slurm import actions, controller, metrics, snapshot, state  # noqa: F401
from tests.slurm.killing import load

load()
