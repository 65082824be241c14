"""No test reads or writes the developer's own ledger, and none leaves a machine behind, also where it fails."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_ledger(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))


@pytest.fixture(autouse=True)
def _stopped_machines(tmp_path: Path) -> Iterator[None]:
    yield
    for file in tmp_path.rglob("machine.json"):
        (file.parent / "stop").touch()
