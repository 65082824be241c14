"""The callback for Hugging Face's Trainer: profiles `trainer.train()`."""

import os
from typing import Any

from stallwise.errors import MissingFeatureError
from stallwise.record.api import ProfilingSession

try:
    import transformers
except ImportError:
    raise MissingFeatureError(
        "stallwise.TrainerCallback needs transformers, which is not installed here: pip install 'stallwise[frameworks]'"
    ) from None


class TrainerCallback(transformers.TrainerCallback):
    """Profile `trainer.train()` of Hugging Face's Trainer.

    Args:
        folder: Folder of the run; a name that is taken gets a number.
        full: Measure everything that `stallwise profile` does, then stop the training. By default it observes only.
        max_time_s: With `full`: seconds to measure at most.
        max_steps: With `full`: steps to measure at most.
        allow_writes: With `full`: what is saved goes where the script says, not to the run's scratch folder.

    Examples:
        >>> import stallwise
        >>> callback = stallwise.TrainerCallback("runs/a")  # Trainer(..., callbacks=[callback])
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
        self._session = ProfilingSession(
            folder, full=full, max_time_s=max_time_s, max_steps=max_steps, allow_writes=allow_writes, quiet=True
        )

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to record: the model is wrapped, no batch has been fetched yet."""
        self._session.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop the training when everything has been measured; all ranks do so at the same step."""
        if self._session.done:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the run and write it."""
        self._session.end()
