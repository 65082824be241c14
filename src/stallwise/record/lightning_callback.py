"""A callback for Lightning."""

import os
import sys
from typing import TYPE_CHECKING, Any

from stallwise.errors import MissingFeatureError
from stallwise.record.inside import Session

if TYPE_CHECKING:
    from lightning.pytorch import Callback
elif "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    # The package has two names, and a Trainer knows only the callbacks of its own.
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
    """Profiles `trainer.fit()`: `Trainer(callbacks=[stallwise.LightningCallback("runs/a")])`.

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

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The ranks know each other, the model is not wrapped yet."""
        if stage == "fit":
            self._session.begin()

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        """All ranks are done at the same step."""
        if self._session.done:
            trainer.should_stop = True

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The training failed or was interrupted."""
        self._session.end(f"the script raised {type(exception).__name__}", 1)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Write the run."""
        if stage == "fit":
            self._session.end()
