"""The built wheel works without torch, where nothing is but what it requires."""

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request
import zipfile
from collections.abc import Collection
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT, lacks
from tests.waiting import until

PYPROJECT = (ROOT / "pyproject.toml").read_text()


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
    subprocess.run(command, check=True, capture_output=True, timeout=250)
    return next(into.glob("*.whl"))


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {"stallwise/py.typed", "stallwise/hardware/catalog_data/gpus.csv"} <= set(names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"stallwise"}


def _works_without_torch(program: list[str], folder: Path) -> None:
    def run(*arguments: str) -> str:
        command = [*program, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder, timeout=250).stdout

    assert run("--version").startswith("stallwise ")
    assert json.loads(run("catalog", "offers", "--gpu", "H100", "--json"))["offers"]
    doctor = json.loads(run("doctor", "--json"))
    assert doctor["torch"] is None, "torch must not be a dependency"
    assert not next(f for f in doctor["features"] if f["name"] == "training in this interpreter")["ready"]


def _empty_environment(folder: Path) -> Path:
    """Its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True, timeout=250)
    return folder / "env/bin/python"


def _requirements(name: str, found: set[str]) -> set[str]:
    """The names of all distributions that one needs, without its extras."""
    for text in importlib.metadata.requires(name) or []:
        needed = Requirement(text)
        other = canonicalize_name(needed.name)
        if other not in found and (needed.marker is None or needed.marker.evaluate({"extra": ""})):
            found.add(other)
            _requirements(other, found)
    return found


def test_the_wheel_works_where_only_its_requirements_are(wheel: Path, tmp_path: Path) -> None:
    """The wheel unpacked beside links to what it requires, of the packages that are here; nothing is installed."""
    place = tmp_path / "packages"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(place)
    needed = _requirements("stallwise", set())
    assert {"numpy", "typer"} <= needed
    assert "torch" not in needed
    for name in needed:
        for path in importlib.metadata.files(name) or []:
            top = path.parts[0]
            if top not in ("..", "__pycache__") and not (place / top).exists():
                (place / top).symlink_to(Path(str(path.locate())).parents[len(path.parts) - 1] / top)
    python = _empty_environment(tmp_path)
    (next(tmp_path.glob("env/lib/python*/site-packages")) / "needed.pth").write_text(f"{place}\n")
    _works_without_torch([str(python), "-m", "stallwise"], tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("constraints", [("-c", str(ROOT / "constraints.txt")), ()], ids=["ours", "what pip resolves"])
def test_the_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path, constraints: tuple[str, ...]) -> None:
    # Installed from outside and not compiled beforehand: half the time, the same files.
    pip = [sys.executable, "-m", "pip", "--python", str(_empty_environment(tmp_path))]
    install = [*pip, "install", "--quiet", "--no-compile", *constraints, str(wheel)]
    environment = {key: value for key, value in os.environ.items() if key != "PIP_CONSTRAINT"}
    subprocess.run(install, check=True, timeout=600, env=environment)
    _works_without_torch([str(tmp_path / "env/bin/stallwise")], tmp_path)
    packages = next(tmp_path.glob("env/lib/python*/site-packages"))
    sizes = {
        one.metadata["Name"]: sum(Path(str(path.locate())).stat().st_size for path in one.files or [] if _counts(path))
        for one in importlib.metadata.distributions(path=[str(packages)])
    }
    total = sum(size for name, size in sizes.items() if name != "numpy")
    print(f"{total / 1e6:.1f} MB beyond NumPy:", {name: round(size / 1e6, 1) for name, size in sizes.items()})
    assert total <= _MOST_BYTES, sizes


def _counts(path: importlib.metadata.PackagePath) -> bool:
    return ".." not in path.parts and path.suffix != ".pyc"


CORE = ("jinja2", "msgspec", "numpy", "platformdirs", "psutil", "pyyaml", "rich", "typer")
_MOST_BYTES = 25e6


def _files_of(name: str) -> list[Path]:
    return [Path(str(path.locate())) for path in importlib.metadata.files(name) or [] if ".." not in path.parts]


def test_the_core_is_small_and_leaves_torch_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        (metadata,) = [name for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
        text = packed.read(metadata).decode()
        own_bytes = sum(entry.file_size for entry in packed.infolist())
    lines = [line.partition(": ")[2] for line in text.splitlines() if line.startswith("Requires-Dist: ")]
    requirements = [Requirement(line) for line in lines]
    core = {canonicalize_name(one.name) for one in requirements if "extra" not in str(one.marker or "")}
    assert not core & {"torch", "numba", "scipy", "polars"}
    assert not any(one.name == "torch" and 'extra == "dev"' not in str(one.marker) for one in requirements)
    needed: set[str] = {*core}
    for name in core:
        _requirements(name, needed)
    needed -= {"numpy", "torch"}
    sizes = {name: sum(path.stat().st_size for path in _files_of(name) if path.suffix != ".pyc") for name in needed}
    total = own_bytes + sum(sizes.values())
    print(f"{total / 1e6:.1f} MB beyond torch and NumPy:", {name: round(size / 1e6, 1) for name, size in sizes.items()})
    assert total <= _MOST_BYTES, sizes


def _repacked(name: str, folder: Path) -> None:
    """An installed distribution as the wheel that it came from, for an installation without network."""
    distribution = importlib.metadata.distribution(name)
    tag = [line for line in (distribution.read_text("WHEEL") or "").splitlines() if line.startswith("Tag: ")][-1]
    base = f"{distribution.metadata['Name'].replace('-', '_').replace('.', '_')}-{distribution.version}"
    with zipfile.ZipFile(folder / f"{base}-{tag.removeprefix('Tag: ')}.whl", "w") as packed:
        for path in distribution.files or []:
            if ".." not in path.parts and path.suffix != ".pyc" and Path(str(path.locate())).is_file():
                packed.write(str(path.locate()), str(path))


def _linked(name: str, folder: Path) -> None:
    """Make an installed distribution one of another environment."""
    for path in importlib.metadata.files(name) or []:
        top = path.parts[0]
        if top not in ("..", "__pycache__") and not (folder / top).exists():
            (folder / top).symlink_to(Path(str(path.locate())).parents[len(path.parts) - 1] / top)


def _environment_with_torch(folder: Path, *, without: Collection[str] = ()) -> tuple[Path, Path, set[str]]:
    """An interpreter that has this torch and what torch needs, its packages' folder, and their names."""
    python = _empty_environment(folder)
    packages = next(folder.glob("env/lib/python*/site-packages"))
    torch = _requirements("torch", {"torch", "numpy"}).difference(without)
    for name in torch:
        _linked(name, packages)
    return python, packages, torch


@pytest.fixture(scope="module")
def beside_torch(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that had this torch, in which pip has installed the wheel without an index."""
    folder = tmp_path_factory.mktemp("beside")
    python, packages, torch = _environment_with_torch(folder)
    needed: set[str] = {canonicalize_name(name) for name in CORE}
    for name in CORE:
        _requirements(name, needed)
    wheels = folder / "wheels"
    wheels.mkdir()
    for name in needed - torch:
        _repacked(name, wheels)
    before, began_s = set(packages.iterdir()), time.monotonic()
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile", "--no-index"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    command = [*pip, "--find-links", str(wheels), str(wheel)]
    environment["PIP_CONFIG_FILE"] = os.devnull
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, env=environment)
    assert done.returncode == 0, done.stderr
    took_s = time.monotonic() - began_s
    new = [path for top in set(packages.iterdir()) - before for path in [top, *top.rglob("*")] if path.is_file()]
    size = sum(path.stat().st_size for path in new)
    print(f"installed beside torch {importlib.metadata.version('torch')}: {size / 1e6:.1f} MB in {took_s:.1f} s")
    assert size <= _MOST_BYTES
    assert all((packages / one.name).is_symlink() for one in before if one.name.startswith(("torch", "numpy")))
    return python


@pytest.fixture(scope="module")
def lowest(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with this torch and every dependency of the core at its lower bound."""
    return _at_lower_bounds(wheel, tmp_path_factory.mktemp("lowest"))


@pytest.fixture(scope="module")
def lowest_of_extras(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Likewise, with every extra that users install."""
    return _at_lower_bounds(wheel, tmp_path_factory.mktemp("extras"), _EXTRAS)


_EXTRAS = ("model", "data", "sim", "slurm", "ray", "ui")


def _at_lower_bounds(wheel: Path, folder: Path, extras: Collection[str] = ()) -> Path:
    project = tomllib.loads(PYPROJECT)["project"]
    listed = [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]
    bounds = {canonicalize_name(one.name): one for one in map(Requirement, listed)}
    pinned = [f"{name}=={next(iter(one.specifier)).version}" for name, one in bounds.items()]
    python, packages, _ = _environment_with_torch(folder, without=set(bounds))
    environment = {key: value for key, value in os.environ.items() if key != "PIP_CONSTRAINT"}
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", "0", "--timeout", "20"]
    (folder / "wheels").mkdir()
    fetch = [*pip, "download", "--quiet", "--no-deps", "--dest", str(folder / "wheels"), pinned[0]]
    if subprocess.run(fetch, capture_output=True, timeout=120, env=environment).returncode:
        lacks("a package index")
    command = [*pip, "--python", str(python), "install", "--quiet", "--no-compile", "--only-binary=:all:"]
    done = subprocess.run([*command, *pinned, str(wheel)], capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr
    there = {canonicalize_name(one.name): one.version for one in importlib.metadata.distributions(path=[str(packages)])}
    assert all(
        one.specifier.contains(there[name]) and f"{name}=={there[name]}".startswith(pin)
        for (name, one), pin in zip(bounds.items(), pinned, strict=True)
    )
    return python


_ALL_HELPS = """
import typer.main
from stallwise.cli.main import app

def show(command, path=()):
    app([*path, "--help"], prog_name="stallwise", standalone_mode=False)
    for name, inner in getattr(command, "commands", {}).items():
        show(inner, (*path, name))

show(typer.main.get_command(app))
"""


_A_TABLE_AGAIN = """
import sys
from pathlib import Path
from stallwise.run.table_file import read_table_file, write_table

table = read_table_file(Path(sys.argv[1]))
write_table(Path("again.npz"), table)
assert list(read_table_file(Path("again.npz")).columns) == list(table.columns)
"""


@pytest.mark.timeout(900)
def test_the_core_works_with_the_oldest_versions_that_it_accepts(lowest: Path, tmp_path: Path) -> None:
    helps = subprocess.run([str(lowest), "-c", _ALL_HELPS], capture_output=True, text=True, timeout=200)
    assert helps.returncode == 0, helps.stderr
    assert helps.stdout.count("Usage:") >= 40
    assert not re.search(r"<[a-z]+>|\[\[|\[bold|bool", helps.stdout)
    runs = ROOT / "examples/runs"
    assert "step" in _runs(lowest, tmp_path, "report", str(runs / "images"), "--html", "report.html")
    _runs(lowest, tmp_path, "compare", str(runs / "slow-data-fixed"), str(runs / "slow-data"), codes=(0, 1, 3))
    json.loads(_runs(lowest, tmp_path, "predict", str(runs / "images"), "--gpu", "A100", "--json"))
    tables = [str(lowest), "-c", _A_TABLE_AGAIN, str(runs / "images/steps.npz")]
    again = subprocess.run(tables, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    sentence = _runs(lowest, tmp_path, "report", str(runs / "images"), "--as", "crd", codes=(2,))
    assert "Did you mean card?" in sentence


def _runs(python: Path, folder: Path, *words: str, codes: tuple[int, ...] = (0,)) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [str(python.with_name("stallwise")), *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=250, env=environment)
    assert done.returncode in codes, f"{words}: {done.returncode}\n{done.stderr}"
    return done.stdout + done.stderr


def test_pip_installs_the_core_without_network_and_leaves_torch_alone(beside_torch: Path, tmp_path: Path) -> None:
    assert "step" in _runs(beside_torch, tmp_path, "report", str(ROOT / "examples/runs/images"))
    absent = [str(beside_torch), "-c", "import numba"]
    assert subprocess.run(absent, capture_output=True, timeout=250).returncode, "nothing but the core is there"
    trace = tmp_path / "jobs.csv"
    trace.write_text("job_id,num_gpu,submit_time,duration\n7,2,5,60\n")
    words = ("simulate", str(trace), "--cluster", "racks=1,machines=1,gpus=4")
    for extra, command in {"sim": words, "ui": ("ui", str(tmp_path), "--no-browser")}.items():
        sentence = _runs(beside_torch, tmp_path, *command, codes=(2,)).strip()
        assert sentence.endswith(f"pip install 'stallwise[{extra}]'")
        assert "\n" not in sentence


@pytest.mark.soak
@pytest.mark.parametrize("versions", ["beside_torch", "lowest"])
def test_profile_report_tune_and_compare_beside_the_torch_that_is_there(
    versions: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    python, job = request.getfixturevalue(versions), str(ROOT / "tests/record/jobs/train.py")
    _runs(python, tmp_path, "profile", "--max-time", "3s", "--no-cold", "-o", "a", job)
    assert "step" in _runs(python, tmp_path, "report", "a", "--detail")
    _runs(python, tmp_path, "compare", "a", "a", "--fail-if-slower", "50%", codes=(0, 3))
    _runs(python, tmp_path, "tune", "--dry-run", "--max-time", "20s", "-o", "b", job, codes=(0, 3))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_every_extra_works_with_the_oldest_versions_that_it_accepts(lowest_of_extras: Path, tmp_path: Path) -> None:
    def run(*words: str) -> str:
        return _runs(lowest_of_extras, tmp_path, *words)

    job = str(ROOT / "examples/runs/images")
    (tmp_path / "jobs.csv").write_text("job_id,submit_s,gpus,duration_s\n1,0,2,60\n2,5,4,90\n")
    (tmp_path / "machines.csv").write_text("machine_id,start_s,end_s,cpu\na,0,900,1\nb,100,1800,1\n")
    (tmp_path / "set-ups.csv").write_text(
        "model,gpu,precision,layout,torch,compiled,img_size,batch,samples_per_s,step_ms,params_m,fwd_gmacs,macts\n"
        "resnet50,RTX5090,amp,nchw,2.9,False,224,256,,,25.56,4.11,11.11\n"
    )
    simulate = ("simulate", "jobs.csv", "--cluster", "machines=2,gpus=4", "--policy", "fifo,las", "--json")
    read = json.JSONDecoder().raw_decode  # the document; what stderr says stands behind it
    here, spread = (read(run(*simulate, *engine))[0] for engine in ((), ("--engine", "ray")))
    assert [row | {"took_s": 0} for row in spread["rows"]] == [row | {"took_s": 0} for row in here["rows"]]
    assert "shrink" in run("overcommit", "machines.csv")
    prices = ("--mean-life", "9h", "--price", "3", "--spot-price", "1", "--checkpoint-time", "5s", "--replays", "50")
    assert "checkpoint" in run("spot", "plan", job, "--steps", "1000", *prices)
    assert "Weibull" in run("spot", "fit", "K80/us-east1")
    assert "resnet50" in run("predict", "--table", "set-ups.csv")
    (tmp_path / "objects").mkdir()
    for name in "abc":
        (tmp_path / "objects" / name).write_bytes(os.urandom(50_000))
    store = f"file://{tmp_path / 'objects'}"
    run("data", "warm", store, "--cache", "cache", "--cache-size", "100MB")
    run("data", "verify", store, "--cache", "cache")
    assert "Usage" in run("schedule", "--help")
    _serves_runs(lowest_of_extras, tmp_path)


def _serves_runs(python: Path, folder: Path) -> None:
    """`ui` answers, and ends when it is interrupted."""
    words = [str(python.with_name("stallwise")), "ui", str(ROOT / "examples/runs"), "--no-browser", "--port", "0"]
    printed = folder / "ui.txt"
    with printed.open("w") as stdout, subprocess.Popen(words, stdout=stdout, stderr=stdout, cwd=folder) as server:
        try:
            (address,) = until(lambda: re.findall(r"http://\S+", printed.read_text()), explain=printed.read_text)
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            with opener.open(address, timeout=100) as page:
                assert b"ui.css" in page.read()
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(timeout=100)
    assert server.returncode == 0, printed.read_text()
