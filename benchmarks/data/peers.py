"""Environments for peers that do not fit beside our pins, made under build/peers at first use.

LitData wants a torchvision, and the one in the registry does not load with the CPU build of torch; MosaicML Streaming
wants numpy < 2.2 and imports torchvision wherever it is used or not. Each gets a virtual environment that sees the
project's own packages (torch, boto3, obstore: the same builds as everybody's) behind its own few, and Streaming the two
names of torchvision that it asks for. Neither touches what is measured.
"""

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Environment:
    """Packages with exact versions (installed without their dependencies), and files to add."""

    name: str
    packages: tuple[str, ...]
    files: tuple[tuple[str, str], ...] = ()


LITDATA = Environment("litdata", ("litdata==0.2.76",))
SPDL = Environment("spdl", ("spdl_core==0.8.0",))
STREAMING = Environment(
    "streaming",
    (
        "mosaicml-streaming==0.13.0",
        "numpy==2.1.3",
        "xxhash==3.8.2",
        "Brotli==1.2.1",
        "catalogue==2.0.10",
        "python-snappy==0.7.3",
        "cramjam==2.14.0",
    ),
    (
        ("torchvision/__init__.py", ""),
        ("torchvision/datasets.py", "class VisionDataset:\n    pass\n"),
        ("torchvision/transforms/__init__.py", ""),
        ("torchvision/transforms/functional.py", "def to_tensor(image):\n    raise NotImplementedError\n"),
    ),
)


def python_of(environment: Environment | None) -> str:
    """The interpreter of the environment (made where it is missing); ours for None."""
    if environment is None:
        return sys.executable
    folder = ROOT / "build" / "peers" / environment.name
    python = folder / "bin" / "python"
    made = folder / "made"
    wanted = repr(environment)
    if not made.exists() or made.read_text() != wanted:
        _make(environment, folder, python)
        made.write_text(wanted)
    return str(python)


def _make(environment: Environment, folder: Path, python: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    packages = folder / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    (packages / "project.pth").write_text(sysconfig.get_path("purelib") + "\n")
    # Constraints are the project's own; these packages are pinned above and bring nothing with them.
    install = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
    ]
    environ = os.environ | {"PIP_CONSTRAINT": "", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run([*install, *environment.packages], env=environ, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the environment of {environment.name} cannot be made:\n{done.stderr[-2000:]}")
    for name, text in environment.files:
        path = packages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
