"""A machine of the local back end, as a process of its own: it boots, runs a command, gets notice, and ends.

    python -I -S _machine.py FOLDER COMMAND …

It outlives whoever started it, as a machine in a cloud does. Only the standard library is used and nothing of this
package is imported, so that a start costs little. FOLDER has `machine.json` and lies beside the other machines of its
cloud, whose `cloud.json` gives the clock. What happens is told by files: `lock` is held while it lives, `began` exists
from then on for ever (a name has one life), `running` from the end of its boot, `exit` holds the code of its command,
`ended.json` says when and why it ended; `stop` asks for the end.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

_POLL_S = 0.05
_LOCK_TRIES = 40
_STOP_S = 10.0
"""Real seconds that a command has at a stop."""


def main(folder: str, command: list[str]) -> None:
    """Live the life that `machine.json` describes."""
    with open(os.path.join(folder, "machine.json"), encoding="utf-8") as file:  # noqa: PTH118, PTH123
        life = json.load(file)
    with open(os.path.join(folder, "..", "..", "cloud.json"), encoding="utf-8") as file:  # noqa: PTH118, PTH123
        cloud = json.load(file)
    handle = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)  # noqa: PTH118
    if not _locked(handle) or _exists(folder, "stop") or not _create(folder, "began", str(os.getpid())):
        return

    def now_s() -> float:
        return float((time.time() - cloud["origin_s"]) * cloud["speed"])

    why = _live(folder, command, life, now_s)
    _write(folder, "ended.json", json.dumps({"at_s": now_s(), "why": why}))


def _live(folder: str, command: list[str], life: dict[str, float], now_s: Callable[[], float]) -> str:
    _prctl(36, 1)  # a child of a process that has ended becomes ours, and ends with us
    ends_s = life["ends_s"] if life["ends_s"] is not None else float("inf")
    while now_s() < life["ready_s"]:
        if _exists(folder, "stop"):
            return "stopped"
        if now_s() >= ends_s:
            return "preempted"
        time.sleep(_POLL_S)
    ready_s = now_s()
    with open(os.path.join(folder, "out.txt"), "ab") as out:  # noqa: PTH118, PTH123
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: _prctl(1, signal.SIGKILL),
        )
    _write(folder, "running", str(ready_s))
    why = _watch(folder, child, ends_s, ends_s - life["grace_s"], now_s)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    _end_descendants()
    return why


def _watch(
    folder: str, child: "subprocess.Popen[bytes]", ends_s: float, notice_s: float, now_s: Callable[[], float]
) -> str:
    stop_s: float | None = None
    noticed = False
    while True:
        if child.returncode is None and child.poll() is not None:
            _write(folder, "exit", str(child.returncode))
        if now_s() >= ends_s:
            return "preempted"
        if stop_s is None and _exists(folder, "stop"):
            stop_s = time.monotonic()
        if not noticed and child.returncode is None and (stop_s is not None or now_s() >= notice_s):
            noticed = True
            child.terminate()
        if stop_s is not None and (child.returncode is not None or time.monotonic() - stop_s >= _STOP_S):
            return "stopped"
        time.sleep(_POLL_S)


def _end_descendants() -> None:
    """Kill what the command left behind: its orphans are children of this process."""
    until_s = time.monotonic() + _STOP_S
    while time.monotonic() < until_s:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:  # noqa: PTH123
            children = file.read().split()
        if not children:
            return
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        time.sleep(_POLL_S)


def _locked(handle: int) -> bool:
    """Take the lock; whoever lists machines holds it for an instant."""
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(_POLL_S)
        else:
            return True
    return False


def _exists(folder: str, name: str) -> bool:
    return os.path.exists(os.path.join(folder, name))  # noqa: PTH110, PTH118


def _create(folder: str, name: str, text: str) -> bool:
    try:
        handle = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # noqa: PTH118
    except FileExistsError:
        return False
    os.write(handle, text.encode())
    os.close(handle)
    return True


def _write(folder: str, name: str, text: str) -> None:
    """Write a file that is there in full or not at all."""
    draft = f".{name}.{os.getpid()}"
    if _create(folder, draft, text):
        os.replace(os.path.join(folder, draft), os.path.join(folder, name))  # noqa: PTH105, PTH118


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            main(sys.argv[1], sys.argv[2:])
    os._exit(0)
