"""The Lightning callback: profiles `trainer.fit()`."""

import os
import sys
from typing import TYPE_CHECKING, Any

from stallwise.errors import MissingFeatureError
from stallwise.record.api import ProfilingSession

if TYPE_CHECKING:
    from lightning.pytorch import Callback
elif "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    # The package has two names, and a Trainer accepts only the callbacks of its own.
    Callback = sys.modules["pytorch_lightning"].Callback
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        raise MissingFeatureError(
            "stallwise.LightningCallback needs lightning, which is not installed here: "
            "pip install 'stallwise[frameworks]'"
        ) from None


class LightningCallback(Callback):
    """Profile `trainer.fit()` of Lightning's Trainer.

    Args:
        folder: Folder of the run; a name that is taken gets a number.
        full: Measure everything that `stallwise profile` does, then stop the training. By default it observes only.
        max_time_s: With `full`: seconds to measure at most.
        max_steps: With `full`: steps to measure at most.
        allow_writes: With `full`: what is saved goes where the script says, not to the run's scratch folder.

    Examples:
        >>> import stallwise
        >>> callback = stallwise.LightningCallback("runs/a")  # Trainer(callbacks=[callback])
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

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin to record: the process group exists, the model is not wrapped yet."""
        if stage == "fit":
            self._session.begin()

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        """Stop the training when everything has been measured; all ranks do so at the same step."""
        if self._session.done:
            trainer.should_stop = True

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the run with the exception as the reason."""
        self._session.end(f"the script raised {type(exception).__name__}", 1)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the run and write it."""
        if stage == "fit":
            self._session.end()
