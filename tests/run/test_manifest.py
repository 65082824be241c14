import json
import socket
from pathlib import Path

import pytest

from stallwise.errors import RunError, RunVersionError
from stallwise.run import Run
from stallwise.run.manifest import MANIFEST_NAME, is_secret, migrate, read_manifest, redact, redact_environment
from tests.run.made import begin


def test_every_truncation_is_a_sentence(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    whole = (tmp_path / "run" / MANIFEST_NAME).read_bytes()
    manifest = read_manifest(tmp_path / "run")
    cut = tmp_path / "cut"
    cut.mkdir()
    for size in range(len(whole)):
        (cut / MANIFEST_NAME).write_bytes(whole[:size])
        if whole[:size].strip() == whole.strip():
            assert read_manifest(cut) == manifest
            continue
        with pytest.raises(RunError, match="cut off") as caught:
            Run.open(cut)
        assert "\n" not in str(caught.value)


def test_newer_version_asks_for_an_upgrade(tmp_path: Path) -> None:
    begin(tmp_path)
    _edit(tmp_path, schema_version=3)
    with pytest.raises(RunVersionError, match=r"record version 3; this one reads up to 2\. Upgrade"):
        Run.open(tmp_path)


@pytest.mark.parametrize("version", [0, -1, "1", None, True, 1.5])
def test_a_version_that_is_none(tmp_path: Path, version: object) -> None:
    begin(tmp_path)
    _edit(tmp_path, schema_version=version)
    with pytest.raises(RunError, match="not a Stallwise run"):
        Run.open(tmp_path)


@pytest.mark.parametrize("text", ["[]", "3", "null", '"x"', "{}", "\ufeff{}", "\x00"])
def test_json_of_something_else(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST_NAME).write_text(text)
    with pytest.raises(RunError):
        Run.open(tmp_path)


def test_wrong_types_name_the_field(tmp_path: Path) -> None:
    begin(tmp_path)
    _edit(tmp_path, world={"world_size": "many"})
    with pytest.raises(RunError, match="world_size"):
        Run.open(tmp_path)


def test_unknown_keys_of_the_same_version_are_tolerated(tmp_path: Path) -> None:
    begin(tmp_path)
    _edit(tmp_path, weather="rain", job={"script": "train.py", "mood": "good"})
    assert Run.open(tmp_path).manifest.job.script == "train.py"


def test_no_folder_a_file_and_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="There is no run at"):
        Run.open(tmp_path / "absent")
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="is a file, and a run is a folder"):
        Run.open(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=r"holds no manifest\.json"):
        Run.open(tmp_path / "empty")


def test_no_host_name_is_recorded(tmp_path: Path) -> None:
    begin(tmp_path)
    assert json.dumps(socket.gethostname()) not in (tmp_path / MANIFEST_NAME).read_text()


def test_migration_runs_each_step_once_in_order() -> None:
    steps = {
        1: lambda document: {**document, "trail": [*document["trail"], "one"]},
        2: lambda document: {**document, "trail": [*document["trail"], "two"]},
    }
    old = {"schema_version": 1, "trail": []}
    assert migrate(old, steps, 3) == {"schema_version": 3, "trail": ["one", "two"]}
    assert migrate({"schema_version": 2, "trail": []}, steps, 3)["trail"] == ["two"]
    assert old == {"schema_version": 1, "trail": []}


def _edit(folder: Path, **changes: object) -> None:
    path = folder / MANIFEST_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["--api-key", "abc123", "--lr", "0.1"], ("--api-key", "***", "--lr", "0.1")),
        (["--api_key=abc123"], ("--api_key=***",)),
        (["--wandbApiKey=abc"], ("--wandbApiKey=***",)),
        (["logger.wandb.token=abc"], ("logger.wandb.token=***",)),
        (["HF_TOKEN=abc"], ("HF_TOKEN=***",)),
        (["--password", "-dash-first"], ("--password", "***")),
        (["--use-auth-token", "--lr", "1"], ("--use-auth-token", "--lr", "1")),
        (["--data", "s3://user:pw@host/x"], ("--data", "s3://***@host/x")),
        (["--data=https://me:pw@host/x?a=1&token=zz"], ("--data=https://***@host/x?a=1&token=***",)),
        (["https://h/x?X-Amz-Signature=ff&b=2"], ("https://h/x?X-Amz-Signature=***&b=2",)),
        (["hf_abcdefghijklmnopqrstuvwx"], ("***",)),
        (["--header", "Authorization: Bearer abc.def"], ("--header", "Authorization: ***")),
        (["https://a.net/c?sv=2020&sig=AbC%2Fd"], ("https://a.net/c?sv=2020&sig=***",)),
        (["--env=HF_TOKEN=x9", "--env", "HF_TOKEN=x9"], ("--env=HF_TOKEN=***", "--env", "HF_TOKEN=***")),
        (['{"api_key": "x9", "lr": 0.1}'], ('{"api_key": "***", "lr": 0.1}',)),
        (["{'db': {'password': 'x9'}}"], ("{'db': {'password': '***'}}",)),
        (["X-Api-Key: x9", "Authorization: Token x9 y"], ("X-Api-Key: ***", "Authorization: ***")),
        (["k=1,hub.token=x9,lr=2", "--cfg=password=a,b,lr=1"], ("k=1,hub.token=***,lr=2", "--cfg=password=***,lr=1")),
        (["postgres://u:p@s/s@host/db", "s3://b/a@v2"], ("postgres://***@host/db", "s3://b/a@v2")),
        (["AccountName=a;AccountKey=x9==;End=b"], ("AccountName=a;AccountKey=***;End=b",)),
        (["a1B2c3D4e5F6g7H8i9J0k1L2", "0123456789abcdef" * 2], ("***", "***")),
        (["lr=0.1,steps=10", "a:b", "very_long_name_of_a_run"], ("lr=0.1,steps=10", "a:b", "very_long_name_of_a_run")),
        (["--tokenizer", "gpt2", "--max-tokens", "1024"], ("--tokenizer", "gpt2", "--max-tokens", "1024")),
        (["--epochs", "3", "data/train"], ("--epochs", "3", "data/train")),
    ],
)
def test_arguments_keep_everything_but_secrets(given: list[str], kept: tuple[str, ...]) -> None:
    assert redact(given) == kept


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "apiKey", "db.password", "MYTOKEN2", "PGPASSWORD"]
)
def test_secret_names(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["tokenizer", "max_tokens", "batch_size", "bypass", "path", "author"])
def test_everyday_names(name: str) -> None:
    assert not is_secret(name)


def test_environment_is_an_allowlist_with_masks() -> None:
    environment = {
        "OMP_NUM_THREADS": "4",
        "NCCL_DEBUG": "INFO",
        "TORCH_HUB_TOKEN": "abc",
        "HF_TOKEN": "abc",
        "MASTER_ADDR": "node17.example.org",
        "HOME": "/home/someone",
    }
    assert redact_environment(environment) == {
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "4",
        "TORCH_HUB_TOKEN": "***",
    }
    assert redact_environment({"HF_TOKEN": "abc"}, recorded=["HF_"]) == {"HF_TOKEN": "***"}
