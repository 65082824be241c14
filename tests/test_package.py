"""The built wheel, installed where nothing else is, works without torch."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(into),
        str(ROOT),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return next(into.glob("*.whl"))


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {"stallwise/py.typed", "stallwise/hardware/catalog_data/gpus.csv"} <= set(names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"stallwise"}


def test_the_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    # Installed from outside and not compiled beforehand: half the time, the same files.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(tmp_path / "env/bin/python")]
    constraints = str(ROOT / "constraints.txt")
    subprocess.run([*pip, "install", "--quiet", "--no-compile", "-c", constraints, str(wheel)], check=True)

    def run(*arguments: str) -> str:
        command = [str(tmp_path / "env/bin/stallwise"), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path).stdout

    assert run("--version").startswith("stallwise ")
    assert json.loads(run("catalog", "offers", "--gpu", "H100", "--json"))["offers"]
    doctor = json.loads(run("doctor", "--json"))
    assert doctor["torch"] is None, "torch must not be a dependency"
    assert not next(f for f in doctor["features"] if f["name"] == "training in this interpreter")["ready"]
