"""The terminal renderer: the console and the parts every screen shares."""

import os
import sys
from typing import Literal

from rich.console import Console
from rich.table import Table

# A pipe or a log has no width; wide enough that no table is cut, narrow enough to read.
_PIPE_WIDTH = 120


def console() -> Console:
    """A console on stdout; without a terminal it keeps a fixed width so that logs are not folded at 80."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return Console(width=width, highlight=False, soft_wrap=False)


def table(*columns: str | tuple[str, Literal["left", "right"]], title: str | None = None) -> Table:
    """An open table; a column given as (name, "right") holds numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for column in columns:
        if isinstance(column, str):
            made.add_column(column, no_wrap=True)
        else:
            made.add_column(column[0], justify=column[1], no_wrap=True)
    return made
