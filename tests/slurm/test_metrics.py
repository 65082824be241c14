"""The metrics endpoint beside strangers that hold connections."""

import socket
import threading
import urllib.request
from pathlib import Path

import pytest

from stallwise.slurm import metrics
from stallwise.slurm.metrics import ControllerMetrics, serve_metrics
from tests.fuzz.strangers import replies


def test_scrapes_are_answered_beside_idle_connections_and_threads_are_bounded() -> None:
    before = threading.active_count()
    with serve_metrics("127.0.0.1:0", ControllerMetrics(), "gpu") as port:
        assert port is not None
        idle = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(60)]
        for stranger in idle[::2]:
            stranger.sendall(b"GET / HTTP/1.1\r\nX: ")
        try:
            for _ in range(3):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=250) as answer:
                    assert b'stallwise_looks_total{partition="gpu"} 0.0' in answer.read()
            assert idle[0].recv(1) == b"", "the oldest gave way"
            assert threading.active_count() - before <= metrics._CONNECTIONS + 4
        finally:
            for stranger in idle:
                stranger.close()


def test_whatever_a_stranger_sends_the_next_scrape_is_answered(tmp_path: Path) -> None:
    with serve_metrics("127.0.0.1:0", ControllerMetrics(), "gpu") as port:
        assert port is not None
        seeds = [
            b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n",
            b"POST /metrics?name[]=up HTTP/1.0\r\nContent-Length: 99999999999\r\n\r\nbody",
            b"OPTIONS * HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        ]
        for sent, reply in replies(lambda: socket.create_connection(("127.0.0.1", port), 60), seeds, tmp_path / "ran"):
            assert b"Traceback" not in reply, sent
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=250) as answer:
            assert b'stallwise_looks_total{partition="gpu"} 0.0' in answer.read()


def test_a_connection_that_sends_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics._Request, "timeout", 0.2)
    with serve_metrics("127.0.0.1:0", ControllerMetrics(), "gpu") as port:
        assert port is not None
        with socket.create_connection(("127.0.0.1", port), timeout=250) as silent:
            assert silent.recv(1) == b""
