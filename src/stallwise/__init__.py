"""Stallwise: where a training job's time and money go, what would change it, and what to rent.

The public names are flat; heavy modules load when a name is first used, so that `import stallwise` stays
cheap inside a training script.
"""

from typing import TYPE_CHECKING

from stallwise.lazy import loader

if TYPE_CHECKING:
    from stallwise.errors import StallwiseError
    from stallwise.notebook import open_profile
    from stallwise.record.inside import profiling
    from stallwise.record.lightning_callback import LightningCallback
    from stallwise.record.marks import batches, step
    from stallwise.record.trainer_callback import TrainerCallback

__version__ = "0.1.0.dev0"

__all__ = [
    "LightningCallback",
    "StallwiseError",
    "TrainerCallback",
    "__version__",
    "batches",
    "open_profile",
    "profiling",
    "step",
]

__getattr__ = loader(
    __name__,
    {
        "LightningCallback": "record.lightning_callback",
        "StallwiseError": "errors",
        "TrainerCallback": "record.trainer_callback",
        "batches": "record.marks",
        "open_profile": "notebook",
        "profiling": "record.inside",
        "step": "record.marks",
    },
)
