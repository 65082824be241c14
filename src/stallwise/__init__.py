"""Stallwise: where a training job's time and money go, what would change it, and what to rent.

The public names are flat; heavy modules load when a name is first used, so that `import stallwise` stays
cheap inside a training script.
"""

from typing import TYPE_CHECKING

from stallwise._version import __version__
from stallwise.lazy import loader

if TYPE_CHECKING:
    from stallwise.analysis.analysis import Analysis
    from stallwise.analysis.prediction import Prediction
    from stallwise.analysis.target import Target
    from stallwise.api import compare, open_profile, open_run, profile, recommend, simulate
    from stallwise.errors import StallwiseError
    from stallwise.hardware.catalog import Catalog
    from stallwise.record.api import batches, profiling, step
    from stallwise.record.frameworks.huggingface import TrainerCallback
    from stallwise.record.frameworks.lightning import LightningCallback

__all__ = [
    "Analysis",
    "Catalog",
    "LightningCallback",
    "Prediction",
    "StallwiseError",
    "Target",
    "TrainerCallback",
    "__version__",
    "batches",
    "compare",
    "open_profile",
    "open_run",
    "profile",
    "profiling",
    "recommend",
    "simulate",
    "step",
]

__getattr__ = loader(
    __name__,
    {
        "Analysis": "analysis.analysis",
        "Catalog": "hardware.catalog",
        "LightningCallback": "record.frameworks.lightning",
        "Prediction": "analysis.prediction",
        "StallwiseError": "errors",
        "Target": "analysis.target",
        "TrainerCallback": "record.frameworks.huggingface",
        "batches": "record.api",
        "compare": "api",
        "open_profile": "api",
        "open_run": "api",
        "profile": "api",
        "profiling": "record.api",
        "recommend": "api",
        "simulate": "api",
        "step": "record.api",
    },
)
