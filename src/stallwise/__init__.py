"""Stallwise: where a training job's time and money go, what would change it, and what to rent.

The public names are flat; heavy modules load when a name is first used, so that `import stallwise` stays
cheap inside a training script.
"""

__version__ = "0.1.0.dev0"

__all__ = ["__version__"]
