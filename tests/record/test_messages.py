"""Messages between ranks: values of the type that is expected, and never a program."""

import pickle
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch.distributed as dist

from stallwise.hardware.machine import HostRecord
from stallwise.machine.links import Samples
from stallwise.record.messages import gather


@pytest.fixture(scope="module")
def _alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("node", str),
        (HostRecord(node=1, gpus=("a",)), HostRecord | None),
        (None, HostRecord | None),
        ({4096: [0.5, 1e-9]}, Samples),
        ([[1, "a"], None], Any),
    ],
)
def test_values_arrive_as_they_were(value: Any, kind: Any) -> None:
    assert gather(value, type=kind) == [value]


class Payload:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('code of a message has run')",)


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("data", [pickle.dumps(Payload()), b"[" * 100_000, b"{}", b"5", b"\xff"])
def test_anything_else_is_an_error(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msgspec.json, "encode", lambda _: data)
    with pytest.raises(OSError, match="a message between ranks"):
        gather("node", type=str)
