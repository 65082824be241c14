"""The floors of DESIGN hold, directly and through any chain of imports; and the check itself can fail."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.architecture import TORCH_ALLOWED, part_of, read_graph, third_party, violations

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"


def test_no_module_imports_against_the_floors() -> None:
    assert violations(read_graph(SOURCE)) == []


def test_torch_is_named_only_where_the_design_allows_it() -> None:
    graph = read_graph(SOURCE)
    named = {part_of(module) for module, targets in graph.items() if "torch" in targets}
    assert named <= TORCH_ALLOWED


def test_every_third_party_import_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["dependencies"] + [r for rs in project["optional-dependencies"].values() for r in rs]
    distributions = {"yaml": "pyyaml", "PIL": "pillow"}
    names = {r.split(">")[0].split("=")[0].strip().lower() for r in declared}
    used = {distributions.get(name, name) for name in third_party(read_graph(SOURCE))}
    # click comes with typer; nothing else may come in by the back door.
    assert used - names <= {"click"}


def _package(folder: Path, files: dict[str, str]) -> Path:
    for name, text in {"stallwise/__init__.py": "", **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"stallwise/hardware/a.py": "import stallwise.cli.b", "stallwise/cli/b.py": ""},
            "hardware/ must not reach cli/",
        ),
        (
            {"stallwise/run/a.py": "def f():\n    from stallwise.model import m", "stallwise/model/m.py": ""},
            "run/ must not reach model/",
        ),
        (
            {
                "stallwise/model/m.py": "from ..hardware.h import x",
                "stallwise/hardware/h.py": "import polars\nx = 1",
            },
            "model/ must not reach polars: stallwise.model.m -> stallwise.hardware.h -> polars",
        ),
        (
            {
                "stallwise/model/m.py": "from stallwise.hardware import h",
                "stallwise/hardware/h.py": "from . import deep",
                "stallwise/hardware/deep.py": "import torch",
            },
            "model/ must not reach torch",
        ),
        (
            {"stallwise/spot/s.py": "from stallwise.cloud import c", "stallwise/cloud/c.py": ""},
            "spot/ must not reach cloud/",
        ),
    ],
)
def test_the_check_fails_on_a_house_that_breaks_a_rule(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    found = violations(read_graph(_package(tmp_path, files)))
    assert any(line.startswith(expected) for line in found), found


def test_what_the_rules_allow_is_allowed(tmp_path: Path) -> None:
    files = {
        "stallwise/cloud/c.py": "from stallwise.spot import s\nfrom stallwise.model import m",
        "stallwise/spot/s.py": "import numpy",
        "stallwise/model/m.py": "from stallwise.errors import E",
        "stallwise/errors.py": "E = 1",
    }
    assert violations(read_graph(_package(tmp_path, files))) == []


def test_a_package_without_a_floor_is_noticed(tmp_path: Path) -> None:
    graph = read_graph(
        _package(tmp_path, {"stallwise/helpers/h.py": "import stallwise.errors", "stallwise/errors.py": ""})
    )
    with pytest.raises(LookupError, match="stands on no floor"):
        violations(graph)


@pytest.mark.parametrize("module", ["stallwise", "stallwise.cli.main"])
def test_starting_up_loads_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    heavy = {"numpy", "polars", "torch", "yaml", "scipy", "msgspec", "psutil"}
    assert heavy.isdisjoint(loaded.replace("'", "").strip("[]\n").split(", "))
