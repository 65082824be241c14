"""Programs of the system that some tests need: installed where that is possible, named where it is not."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.conftest import lacks

_PATIENCE_S = 600


def require_packages(*names: str) -> None:
    """Debian packages that must be there. Root on Debian installs them; elsewhere the test is skipped with a reason."""
    missing = missing_packages(*names)
    if not missing:
        return
    wanted = " ".join(missing)
    if not shutil.which("apt-get") or os.geteuid() != 0:
        lacks(f"the Debian packages {wanted} (as root: apt-get install {wanted})")
    with (Path(tempfile.gettempdir()) / "stallwise-tests-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test process may be at it
        said = _install(missing)
    if missing_packages(*missing):
        lacks(f"the Debian packages {wanted}, which could not be installed: {said}")


def missing_packages(*names: str) -> list[str]:
    """Those of the Debian packages that are not installed; all of them where there is no dpkg."""
    return [name for name in names if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    if not shutil.which("dpkg-query"):
        return False
    asked = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", name]
    return subprocess.run(asked, capture_output=True, text=True).stdout == "installed"


def _install(names: list[str]) -> str:
    """Install, with a fresh list of packages where the one at hand is too old; the last thing apt said."""
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *names]
    for command in (install, ["apt-get", "update"], install):
        done = _apt(command)
        if command is install and done.returncode == 0:
            break
    return (done.stderr or done.stdout).strip().rpartition("\n")[2]


def _apt(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        return subprocess.run(
            [*command, "-o", "DPkg::Lock::Timeout=300"],
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"{command[1]} took longer than {_PATIENCE_S} s")
