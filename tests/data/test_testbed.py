"""The testbed does what the other tests rely on."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import BaseError

from tests.conftest import ROOT
from tests.data.testbed.link import slow_link
from tests.data.testbed.proxy import Proxy
from tests.data.testbed.seaweed import Seaweed, content, objects
from tests.waiting import PATIENCE_S, until

NewBucket = Callable[..., str]


def test_a_bucket_gives_back_what_was_put_and_only_with_the_credentials(
    seaweed: Seaweed, new_bucket: NewBucket
) -> None:
    bucket = new_bucket(objects(20, 10_000))
    store = seaweed.store(bucket)
    assert len(obstore.list(store).collect()) == 20
    assert bytes(obstore.get(store, "000007.bin").bytes()) == content("000007.bin", 10_000)
    stranger = Seaweed(seaweed.folder, seaweed.address, seaweed.ports, access_key="nobody", secret_key="x" * 40)
    with pytest.raises(BaseError):
        obstore.get(stranger.store(bucket), "000007.bin")
    reader = seaweed.reader().store(bucket)
    assert len(obstore.get(reader, "000007.bin").bytes()) == 10_000
    with pytest.raises(BaseError):
        obstore.put(reader, "000007.bin", b"overwritten")


def test_the_proxy_counts_by_kind(seaweed: Seaweed, proxy: Proxy, new_bucket: NewBucket) -> None:
    store = seaweed.store(new_bucket(objects(5, 1000)), endpoint=proxy.endpoint)
    obstore.list(store).collect()
    obstore.head(store, "000000.bin")
    for name in ("000001.bin", "000001.bin", "000002.bin"):
        assert bytes(obstore.get(store, name).bytes()) == content(name, 1000)
    traffic = proxy.traffic()
    assert traffic.requests == {"list": 1, "head": 1, "get": 3}
    assert sorted(traffic.objects.values()) == [1, 2]
    assert traffic.faults == {}


@pytest.mark.parametrize("fault", ["slow_down", "internal", "reset_early", "reset_late", "truncate", "stall"])
def test_a_fault_reaches_the_client(fault: str, seaweed: Seaweed, proxy: Proxy, new_bucket: NewBucket) -> None:
    bucket = new_bucket(objects(1, 50_000))
    proxy.set(**{fault: 1.0})
    with pytest.raises((BaseError, OSError)):
        _get_once(seaweed, bucket, proxy.endpoint, 1.0 if fault == "stall" else PATIENCE_S)
    assert proxy.traffic().faults == {fault: 1}


def test_a_shortened_body_calls_itself_whole_and_a_slow_one_arrives(
    seaweed: Seaweed, proxy: Proxy, new_bucket: NewBucket
) -> None:
    bucket = new_bucket(objects(1, 50_000))
    proxy.set(shorten=1.0)
    assert len(_get_once(seaweed, bucket, proxy.endpoint)) == 25_000
    proxy.set(slow=1.0, slow_s=0.3)
    start = time.monotonic()
    assert _get_once(seaweed, bucket, proxy.endpoint) == content("000000.bin", 50_000)
    assert time.monotonic() - start > 0.25


def _get_once(seaweed: Seaweed, bucket: str, endpoint: str, timeout_s: float = PATIENCE_S) -> bytes:
    """Without the retries of obstore's own."""
    from datetime import timedelta

    from obstore.store import S3Store

    store = S3Store(
        bucket,
        endpoint=endpoint,
        **seaweed.options,
        client_options={"allow_http": True, "timeout": timedelta(seconds=timeout_s)},
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
    )
    return bytes(obstore.get(store, "000000.bin").bytes())


def test_a_slow_link_takes_its_round_trip_and_counts_bytes() -> None:
    with slow_link(round_trip_ms=20, rate="80mbit") as link:
        program = (
            "import socket; s = socket.create_server(('', 7007)); c = s.accept()[0]; c.recv(1); "
            "c.sendall(bytes(2_000_000))"
        )
        server = subprocess.Popen(["ip", "netns", "exec", link.namespace, sys.executable, "-c", program])
        start, near = _connected(link.address)
        assert start > 0.019
        before, received, began = link.received_bytes(), 0, time.monotonic()
        near.sendall(b".")  # nothing comes before the clock runs
        while piece := near.recv(1 << 16):
            received += len(piece)
        took = time.monotonic() - began
        near.close()
        server.wait(PATIENCE_S)
        assert received == 2_000_000
        assert 0.98 * received < link.received_bytes() - before < 1.05 * received
        assert took > 0.15  # 0.2 s at the rate, longer where others use the cores
    assert link.namespace not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout


def _connected(address: str) -> tuple[float, socket.socket]:
    """Seconds of the handshake, once somebody listens."""

    def connect() -> tuple[float, socket.socket] | None:
        start = time.monotonic()
        try:
            near = socket.create_connection((address, 7007), timeout=250)
        except OSError:
            return None
        return time.monotonic() - start, near

    connected = until(connect, explain=lambda: "nobody listens behind the link")
    assert connected is not None
    return connected


def test_servers_end_with_a_starter_that_was_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from tests.data.testbed import processes\n"
        "one = processes.start(['sleep', '600'], Path(sys.argv[1])); print(one.pid, flush=True); time.sleep(600)"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "log")], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    child = int(starter.stdout.readline())
    until(lambda: Path(f"/proc/{child}/comm").read_text() == "sleep\n")
    os.kill(starter.pid, signal.SIGKILL)
    starter.wait(PATIENCE_S)
    starter.stdout.close()
    until(lambda: not Path(f"/proc/{child}").exists(), explain=lambda: "the server outlived its starter")
