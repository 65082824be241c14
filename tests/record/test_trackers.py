"""Trackers are silent during a profile, whatever the script passes to them."""

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stallwise.record.ablate._trackers import TRACKERS, silence_trackers


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Stand-ins for the trackers' packages; what they are called with."""
    made: list[tuple[str, dict[str, Any]]] = []

    class Experiment:
        def __init__(self, api_key: str | None = None, workspace: str | None = None, disabled: bool = False) -> None:
            made.append(("comet", {"disabled": disabled}))

    class MlflowClient:
        def __init__(self, tracking_uri: str | None = None, registry_uri: str | None = None) -> None:
            made.append(("client", {"tracking_uri": tracking_uri}))

    modules: dict[str, dict[str, Any]] = {
        "wandb": {
            "init": lambda project=None, mode=None, **more: made.append(("wandb", {"mode": mode, **more})),
            "login": lambda key=None: made.append(("login", {"key": key})),
        },
        "mlflow": {
            "set_tracking_uri": lambda uri: made.append(("mlflow", {"uri": uri})),
            "MlflowClient": MlflowClient,
        },
        "comet_ml": {"Experiment": Experiment},
        "neptune": {"init_run": lambda **more: made.append(("neptune", more))},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    for name in TRACKERS:
        monkeypatch.setenv(name, "as the user set it")
    silence_trackers(tmp_path)
    return made


def test_arguments_of_the_script_do_not_switch_them_on(calls: list[tuple[str, dict[str, Any]]], tmp_path: Path) -> None:
    import comet_ml
    import mlflow
    import neptune
    import wandb

    wandb.init(project="p", mode="online", name="n")
    wandb.init("p", "online")
    assert wandb.login(key="k") is True
    mlflow.set_tracking_uri("https://server")
    mlflow.MlflowClient("https://server")
    comet_ml.Experiment(api_key="k", disabled=False)
    neptune.init_run(mode="async", project="p")
    uri = f"file:{tmp_path}/mlflow"
    assert calls == [
        ("wandb", {"mode": "disabled", "name": "n"}),
        ("wandb", {"mode": "disabled"}),
        ("mlflow", {"uri": uri}),
        ("client", {"tracking_uri": uri}),
        ("comet", {"disabled": True}),
        ("neptune", {"mode": "debug", "project": "p"}),
    ]
    assert os.environ["WANDB_MODE"] == "disabled"
