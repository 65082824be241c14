"""Where the measurements behind a trace lie: beside it, in a folder above it, or where `--profiles` says."""

from dataclasses import dataclass
from pathlib import Path

from stallwise.errors import InputError

_UP = 3  # folders above the trace that are looked through


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Which measurements give speeds to the jobs of a trace."""

    profiles: Path | None = None
    """Folder of layer profiles or applications, or Gavel's table; None: looked for beside the trace."""
    own: tuple[tuple[str, Path], ...] = ()
    """Models of the trace, each with the folder of a run or a layer file that gives its speed."""
    network: str = "released"
    """Links of layer profiles, as `profiles.network_of` reads them."""
    gpu: str = "v100"
    """Worker type of Gavel's table."""


def beside(trace: Path, measured: Measured, *names: str) -> Path | None:
    """The first of `names` that is there, from the folder of the trace upwards; what was given goes first."""
    if measured.profiles is not None:
        if not measured.profiles.exists():
            raise InputError(f"There is nothing at {measured.profiles}. Check --profiles.")
        return measured.profiles
    folder = trace.resolve().parent
    for _ in range(_UP):
        for name in names:
            if (folder / name).exists():
                return folder / name
        folder = folder.parent
    return None


def needed(trace: Path, measured: Measured, *names: str, why: str) -> Path:
    """Likewise, where the trace cannot be read without."""
    found = beside(trace, measured, *names)
    if found is None:
        raise InputError(f"{trace.name} {why}, and there is no {names[0]} beside it. Name it with --profiles.")
    return found
