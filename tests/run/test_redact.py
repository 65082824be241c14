import pytest

from stallwise.run.redact import is_secret, redact, redact_environment


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
        (["--header", "Authorization: Bearer abc.def"], ("--header", "Authorization: Bearer ***")),
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
