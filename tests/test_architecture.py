"""The layers of docs/architecture.md hold (import-linter, contracts in pyproject.toml), and the contracts can fail."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def _lint(source: Path) -> subprocess.CompletedProcess[str]:
    shutil.copy(ROOT / "pyproject.toml", source / "contracts.toml")
    return subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache", "--no-logo", "--config", "contracts.toml"],
        cwd=source,
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def test_the_contracts_hold(tmp_path: Path) -> None:
    shutil.copytree(SOURCE / "stallwise", tmp_path / "stallwise", ignore=shutil.ignore_patterns("__pycache__"))
    done = _lint(tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("file", "statement", "message"),
    [
        ("hardware/a.py", "import stallwise.cli", "stallwise.hardware is not allowed to import stallwise.cli"),
        ("run/a.py", "def f():\n    import stallwise.model", "stallwise.run is not allowed to import stallwise.model"),
        ("spot/a.py", "import stallwise.cloud", "stallwise.spot is not allowed to import stallwise.cloud"),
        ("cluster/a.py", "import torch", "stallwise.cluster is not allowed to import torch"),
        ("model/a.py", "import pathlib", "stallwise.model is not allowed to import pathlib"),
        ("web/a.py", "import torch", "stallwise.web is not allowed to import torch"),
        ("helpers/__init__.py", "", "stallwise.helpers"),
    ],
)
def test_a_package_that_breaks_a_contract_is_named(tmp_path: Path, file: str, statement: str, message: str) -> None:
    names = [name for path in sorted((SOURCE / "stallwise").iterdir()) if (name := path.name).isidentifier()]
    for name in [*names, *(path.name for path in (SOURCE / "stallwise").glob("*.py"))]:
        path = tmp_path / "stallwise" / (name if name.endswith(".py") else f"{name}/__init__.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    path = tmp_path / "stallwise" / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(statement + "\n")
    done = _lint(tmp_path)
    assert done.returncode == 1, done.stdout
    assert message in " ".join(done.stdout.split()), done.stdout


@cache
def _trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}


def _imported(node: ast.AST) -> Iterator[str]:
    """Names of modules that are imported, except those that only a type checker reads."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield node.module or ""
    elif not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
        for child in ast.iter_child_nodes(node):
            yield from _imported(child)


PRIVATE_NAMES = (
    *("analysis", "buckets", "cloud", "cluster", "data", "deflate", "elastic", "fleet", "hardware", "machine"),
    *("model", "overcommit", "record", "report", "run", "slurm", "spot", "tune", "web", "workload"),
)
"""Packages in which every module that no other package imports says so by its name."""


def test_private_modules_show_in_their_names() -> None:
    """`_module.py` is its package's own; another package takes what `__init__` exports or a module without `_`."""
    modules = {_dotted(path): path for path in sorted(_trees())}
    others: set[str] = set()
    for module, path in modules.items():
        for name in _references(path):
            if name in modules and name.split(".")[:2] != module.split(".")[:2]:
                others.add(name)
    foreign = [name for name in sorted(others) if name.rpartition(".")[2].startswith("_")]
    assert foreign == ["stallwise._version"]
    started = set(re.findall(r"-m\"?,? \"?(stallwise[.\w]+)", "".join(path.read_text() for path in modules.values())))
    unmarked = [
        name
        for name, path in modules.items()
        if name.split(".")[1:2] in [[package] for package in PRIVATE_NAMES]
        and not path.name.startswith("_")
        and name not in others | started
    ]
    assert unmarked == [], "imported by no other package: `_name.py`"


def _dotted(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _references(path: Path) -> Iterator[str]:
    """Modules and members that a file imports, as dotted names."""
    for node in ast.walk(_trees()[path]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_third_party_import_is_a_declared_dependency() -> None:
    project = PROJECT["project"]
    declared = project["dependencies"] + [r for rs in project["optional-dependencies"].values() for r in rs]
    distributions = {"yaml": "pyyaml", "PIL": "pillow", "prometheus_client": "prometheus-client"}
    names = {r.split(">")[0].split("=")[0].strip().lower() for r in declared}
    tops = {name.partition(".")[0] for tree in _trees().values() for name in _imported(tree)} - {"stallwise", ""}
    used = {distributions.get(name, name) for name in tops - sys.stdlib_module_names}
    # click comes with typer; nothing else may come in unannounced.
    assert used - names <= {"click"}


@pytest.mark.parametrize("module", ["stallwise", "stallwise.cli.main"])
def test_starting_up_loads_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print(sorted(sys.modules))"
    command = [sys.executable, "-c", program]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, timeout=250).stdout
    heavy = {"numpy", "polars", "torch", "yaml", "scipy", "msgspec", "psutil"}
    assert heavy.isdisjoint(loaded.replace("'", "").strip("[]\n").split(", "))
