"""Folders of runs, and the real server over them."""

import json
import re
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import needs
from tests.report.conftest import browser as browser
from tests.run.lines import line_of
from tests.web.made import make_cold_run, make_hostile_run, make_wide_run

PATIENCE_MS = 120_000
"""How long a page may take for anything it is asked; a busy machine is slow, not wrong."""
JOBS = (
    "policy,cluster,load,seed,job_id,gpus,arrival_s,first_start_s,finish_s,jct_s,run_s,queue_s,work_s,comm_s,"
    "preemptions,migrations\n"
)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass(frozen=True)
class Answered:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Served:
    """A running `stallwise ui`."""

    folder: Path
    address: str

    @property
    def base(self) -> str:
        return self.address.partition("/?")[0]

    @property
    def port(self) -> int:
        found = urllib.parse.urlsplit(self.address).port
        assert found is not None
        return found

    @property
    def token(self) -> str:
        return self.address.rpartition("=")[2]

    def get(self, path: str, *, token: str | None = None, method: str = "GET", host: str | None = None) -> Answered:
        """One request with the cookie that the page has; `token` another one, "" none."""
        given = self.token if token is None else token
        headers = {"cookie": f"stallwise={given}"} if given else {}
        if host:
            headers["host"] = host
        request = urllib.request.Request(self.base + path, headers=headers, method=method)  # noqa: S310 - 127.0.0.1
        opener = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=250) as answer:
                return Answered(answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answered(error.code, {k.lower(): v for k, v in error.headers.items()}, error.read())

    def ask(self, path: str, **query: object) -> Any:
        """The JSON of a question that has an answer."""
        answer = self.get(f"{path}?{urllib.parse.urlencode(query)}")
        assert answer.status == 200, answer.body
        return answer.json()


@contextmanager
def serving(folder: Path) -> Iterator[Served]:
    """The program itself on a free port."""
    command = [sys.executable, "-m", "stallwise", "ui", str(folder), "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        found = re.search(r"http://127\.0\.0\.1:\d+/[\w-]+/\?token=\S+", line_of(process))
        assert found
        yield Served(folder, found[0])
    finally:
        process.terminate()
        try:
            process.communicate(timeout=250)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate(timeout=250)
            pytest.fail("the server did not end when it was asked to")


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ordinary run, a hostile one, one of 1,024 ranks, and two simulations."""
    folder = tmp_path_factory.mktemp("runs")
    make_cold_run(folder / "cold")
    make_hostile_run(folder / "hostile")
    make_wide_run(folder / "wide", 1024)
    (folder / "sims").mkdir()
    rows = (
        f"fifo,c,1.0,0,job-{i},4,{10 * i},{12 * i},{100 + 12 * i},{100 + 2 * i},100,{2 * i},90,10,0,0\n"
        for i in range(250)
    )
    (folder / "sims" / "jobs.csv").write_text(JOBS + "".join(rows))
    _simulate(folder / "sims")
    return folder


def _simulate(folder: Path) -> None:
    """What the command writes: two policies at two loads."""
    trace = folder / "trace.txt"
    rows = [f"j{i},{i * 30},{1 << (i % 4)},{60 + 37 * i % 600}" for i in range(40)]
    trace.write_text("\n".join(["job_id,submit_s,gpus,duration_s", *rows]) + "\n")
    words = ("--cluster", "racks=1,machines=2,gpus=8", "--policy", "fifo,srtf", "--loads", "0.5,2", "--json")
    command = [sys.executable, "-m", "stallwise", "simulate", str(trace), *words]
    done = subprocess.run(command, check=True, capture_output=True, timeout=250)
    (folder / "policies.json").write_bytes(done.stdout)


@pytest.fixture(scope="session")
def served(shelf: Path) -> Iterator[Served]:
    """The server over that folder."""
    needs("uvicorn")
    with serving(shelf) as running:
        yield running
