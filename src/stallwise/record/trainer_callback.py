"""A callback for Hugging Face's Trainer."""

import os
from typing import Any

from stallwise.errors import MissingFeatureError
from stallwise.record.inside import Session

try:
    import transformers
except ImportError:
    raise MissingFeatureError(
        "stallwise.TrainerCallback needs transformers, which is not installed here: pip install 'stallwise[frameworks]'"
    ) from None


class TrainerCallback(transformers.TrainerCallback):
    """Profiles `trainer.train()`: `Trainer(…, callbacks=[stallwise.TrainerCallback("runs/a")])`.

    Only watches, unless `full`: then the training stops as soon as everything has been measured, after `max_time_s` or
    `max_steps` at the latest, and what it saves goes to the run's scratch folder unless `allow_writes`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        full: bool = False,
        max_time_s: float = 120.0,
        max_steps: int | None = None,
        allow_writes: bool = False,
    ) -> None:
        self._session = Session(
            folder, full=full, max_time_s=max_time_s, max_steps=max_steps, allow_writes=allow_writes, quiet=True
        )

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The model is wrapped, no batch has been fetched yet."""
        self._session.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """All ranks are done at the same step."""
        if self._session.done:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the run."""
        self._session.end()
