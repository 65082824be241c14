"""The command line, forked from a process that has it imported.

Starting `python -m stallwise` a thousand times is mostly importing NumPy and typer a thousand times. `run_program`
asks a process of this module to fork: the child has its own working directory, environment, output files and exit
code, and nothing of the test in it. That the program starts from nothing is tested where that is the subject
(tests/test_package.py, tests/cli/test_main.py).
"""

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

DATE_OF_PRICES = "1794960000"
"""2026-11-18 as SOURCE_DATE_EPOCH: ages of prices are counted to this day in tests and documents."""

# Not torch and nothing that starts threads when it is imported: what is forked has one thread.
_IMPORTED = (
    "numpy",
    "msgspec",
    "psutil",
    "rich.console",
    "rich.table",
    "scipy.optimize",
    "scipy.stats",
    "typer",
    "yaml",
)
_CODE_OF_A_FAILED_IMPORT = 70


class _Server:
    """The process that forks, started on first use and ended with this one."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.program", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                cwd=Path(__file__).parents[1],
            )
        self._socket = ours

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def start(self, request: dict[str, object], files: Sequence[int]) -> int:
        """Fork; the process number of the child."""
        self._socket.settimeout(200)
        socket.send_fds(self._socket, [json.dumps(request).encode()], list(files))
        return int(self._receive())

    def wait(self, timeout_s: float) -> int:
        """Exit code of the child."""
        self._socket.settimeout(timeout_s)
        return int(self._receive())

    def _receive(self) -> bytes:
        content = self._socket.recv(64)
        if not content:
            raise ConnectionError("the process that starts programs for tests has ended")
        return content

    def close(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait(60)


_server: _Server | None = None


def run_program(
    arguments: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None, timeout_s: float = 280
) -> subprocess.CompletedProcess[str]:
    """`stallwise arguments` in `cwd`, as `subprocess.run` would; one at a time."""
    global _server
    if _server is None or not _server.runs:
        _server = _Server()
    request = {"arguments": list(arguments), "cwd": str(cwd), "env": dict(os.environ if env is None else env)}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = _server.start(request, (out.fileno(), err.fileno()))
        try:
            code = _server.wait(timeout_s)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            _server.wait(60)
            raise subprocess.TimeoutExpired(["stallwise", *arguments], timeout_s, _text(out), _text(err)) from None
        return subprocess.CompletedProcess(["stallwise", *arguments], code, _text(out), _text(err))


def stop_server() -> None:
    """End the process that forks."""
    global _server
    if _server is not None:
        _server.close()
        _server = None


def _text(file: object) -> str:
    file.seek(0)  # type: ignore[attr-defined]
    return file.read().decode()  # type: ignore[attr-defined,no-any-return]


def _serve(descriptor: int) -> None:
    """Import the program; then fork for each request, tell the child's number, and its exit code when it ended."""
    for name in _IMPORTED:
        importlib.import_module(name)
    cli = importlib.import_module("stallwise.cli")
    for module in pkgutil.walk_packages(cli.__path__, "stallwise.cli."):
        importlib.import_module(module.name)
    gc.collect()
    gc.freeze()  # the child's collector leaves the pages of what was imported shared
    with socket.socket(fileno=descriptor) as requests:
        while True:
            content, files, _, _ = socket.recv_fds(requests, 1 << 20, 2)
            if not content:
                return
            child = os.fork()
            if child == 0:
                break
            for file in files:
                os.close(file)
            requests.send(str(child).encode())
            _, status = os.waitpid(child, 0)
            requests.send(str(os.waitstatus_to_exitcode(status)).encode())
    _become(json.loads(content), files)


def _become(request: dict[str, object], files: list[int]) -> None:
    """Be the program in this process, which ends as an interpreter ends."""
    for number, file in enumerate(files, start=1):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[call-overload]
    os.chdir(str(request["cwd"]))
    sys.argv = [str(Path(sys.executable).with_name("stallwise")), *request["arguments"]]  # type: ignore[misc]
    # Processes that multiprocessing spawns import the main module by this name; `tests` is not on their path.
    sys.modules["__main__"].__spec__ = importlib.util.find_spec("stallwise.__main__")
    # `python -m stallwise` finds modules in the working directory.
    sys.path[0] = str(request["cwd"])
    from stallwise.cli.main import run

    run()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
