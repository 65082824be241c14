"""Amazon's s3torchconnector: its map dataset, listed by prefix."""

from functools import partial
from typing import Any

from s3torchconnector import S3ClientConfig, S3MapDataset

from benchmarks.data.loaders.common import kept, shuffled
from benchmarks.data.spec import Spec


def make(spec: Spec) -> Any:
    """It lists when first asked for its length; credentials come from the environment."""
    dataset = S3MapDataset.from_prefix(
        f"s3://{spec.source}/",
        region="us-east-1",
        endpoint=spec.endpoint,
        transform=partial(_read, spec.decode),
        s3client_config=S3ClientConfig(force_path_style=True, max_attempts=2),
    )
    return shuffled(dataset, spec)


def _read(decode: str, reader: Any) -> tuple[int, int]:
    return kept(reader.read(), decode)
