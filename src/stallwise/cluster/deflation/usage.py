"""How much of their size machines use over time, from a table of per cent; Azure's is the public one."""

import gzip
import zlib
from pathlib import Path

import numpy as np

from stallwise.cluster.deflation.resources import Use
from stallwise.errors import InputError


def read_use(path: Path) -> Use:
    """Per cent of a machine's CPU: a column per machine, a row per five minutes."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        rows = raw.decode().splitlines()
        table = np.array([line.split(",") for line in rows[1:]], dtype=np.float64)
    except (OSError, ValueError, EOFError, zlib.error) as error:  # cut off or damaged, as a table or as a gzip
        raise InputError(f"{path} is no table of CPU use, a column per machine ({error}).") from None
    if table.size == 0 or not ((table >= 0) & (table <= 100)).all():
        raise InputError(f"{path} holds no per cent between 0 and 100.")
    return Use(part=np.ascontiguousarray(table.T / 100.0), source=path.name)
