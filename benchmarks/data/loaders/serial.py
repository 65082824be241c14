"""One GET at a time in the training process itself (no workers): how DELI read its bucket "directly"."""

import os
from typing import Any

from benchmarks.data.loaders.common import kept, shuffled
from benchmarks.data.spec import Spec


class Objects:
    """obstore's own client, so that the wait is the store's and not a slow client's."""

    def __init__(self, spec: Spec) -> None:
        from obstore.store import S3Store

        self._store = S3Store(
            spec.source,
            endpoint=spec.endpoint,
            access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
            secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
            region="us-east-1",
            client_options={"allow_http": True, "timeout": "20s"},
        )
        self._decode = spec.decode
        self.names = sorted(one["path"] for chunk in self._store.list() for one in chunk)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, number: int) -> tuple[int, int]:
        return kept(bytes(self._store.get(self.names[number]).bytes()), self._decode)


def make(spec: Spec) -> Any:
    """Shuffled, as all raw loaders here."""
    return shuffled(Objects(spec), spec)
