"""Imported in the server of `nursery.py`: loads the program and its kernels."""

from stallwise.cli import main, schedule  # noqa: F401
from stallwise.slurm import controller, journal, lock, metrics, snapshot, state  # noqa: F401
from tests.slurm.killing import load

load()
