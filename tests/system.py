"""What some tests need beside Python packages. Tests install nothing: `make system` (`python -m tests.system`) does.

Debian packages: Slurm and its accounting, Chromium, iproute2, a C compiler. In the user's cache, so that a fresh clone
finds them: SkyPilot in an environment of its own (its pins are not ours), and axe-core, which checks accessibility.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import platformdirs

from tests.conftest import lacks

PACKAGES = (
    "chromium",
    "gcc",
    "iproute2",
    "libc6-dev",
    "mariadb-client-core",  # my_print_defaults, which mariadb-install-db calls
    "mariadb-server-core",
    "munge",
    "slurm-wlm",
    "slurm-wlm-mysql-plugin",
    "slurmdbd",
    "systemd",  # systemd-analyze
)
AXE_VERSION = "4.14.0"
_SKYPILOT_REQUIREMENTS = Path(__file__).parent / "cloud" / "skypilot.txt"
_APT_TIMEOUT_S = 900


def require_packages(*names: str) -> None:
    """Skip the test (a failure with STALLWISE_REQUIRE=all) unless these Debian packages are installed."""
    missing = " ".join(missing_packages(*names))
    if missing:
        lacks(f"the Debian packages {missing} (`make system` installs them)")


def missing_packages(*names: str) -> list[str]:
    """Those of the Debian packages that are not installed; all of them where there is no dpkg."""
    return [name for name in names if not _is_installed(name)]


def skypilot_folder() -> Path:
    """The virtual environment with SkyPilot: `STALLWISE_SKYPILOT`, or one in the cache for each list of packages."""
    if given := os.environ.get("STALLWISE_SKYPILOT"):
        return Path(given)
    key = hashlib.sha256(_SKYPILOT_REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    return platformdirs.user_cache_path("stallwise") / f"skypilot-{key}"


def axe_file() -> Path:
    """Where axe-core is kept."""
    return platformdirs.user_cache_path("stallwise") / f"axe-{AXE_VERSION}.min.js"


def _is_installed(name: str) -> bool:
    if not shutil.which("dpkg-query"):
        return False
    query = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", name]
    return subprocess.run(query, capture_output=True, text=True, timeout=60).stdout == "installed"


def install_packages() -> str | None:
    """Install the missing Debian packages; why that failed, or None."""
    missing = missing_packages(*PACKAGES)
    if not missing:
        return None
    if not shutil.which("apt-get") or os.geteuid() != 0:
        return f"needs root on Debian or Ubuntu: apt-get install {' '.join(missing)}"
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "--yes", "--no-install-recommends", *missing]):
        command = ["apt-get", *words, "-o", "DPkg::Lock::Timeout=300"]
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_APT_TIMEOUT_S
        )
    still = missing_packages(*missing)
    return f"{' '.join(still)}: {(done.stderr or done.stdout).strip()[-500:]}" if still else None


def install_skypilot() -> str | None:
    """Make SkyPilot's environment; why that failed, or None. It is renamed when it is whole."""
    folder = skypilot_folder()
    if (folder / "bin/python").exists():
        return None
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="skypilot-") as aside:
        made = Path(aside) / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True)
        pip = [sys.executable, "-m", "pip", "--python", str(made / "bin/python"), "install", "--quiet", "--no-deps"]
        plain = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
        done = subprocess.run(
            [*pip, "--no-compile", "--requirement", str(_SKYPILOT_REQUIREMENTS)],
            env=plain,
            capture_output=True,
            text=True,
            timeout=_APT_TIMEOUT_S,
        )
        if done.returncode:
            return done.stderr.strip()[-500:]
        with contextlib.suppress(OSError):  # another process was first
            made.rename(folder)
    return None


def install_axe() -> str | None:
    """Fetch axe-core from npm; why that failed, or None."""
    target, npm = axe_file(), shutil.which("npm")
    if target.exists():
        return None
    if npm is None:
        return "npm is not installed"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", f"axe-core@{AXE_VERSION}"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
        if done.returncode:
            return done.stderr.strip()[-500:]
        with tarfile.open(Path(folder) / f"axe-core-{AXE_VERSION}.tgz") as archive:
            member = archive.extractfile("package/axe.min.js")
            assert member is not None
            target.write_bytes(member.read())
    return None


def main() -> int:
    """Install everything, and say what could not be."""
    failures = 0
    for name, install in (
        ("Debian packages", install_packages),
        ("SkyPilot", install_skypilot),
        ("axe-core", install_axe),
    ):
        reason = install()
        print(f"{name}: {'installed' if reason is None else f'not installed: {reason}'}", flush=True)
        failures += reason is not None
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
