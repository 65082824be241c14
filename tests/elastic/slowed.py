"""The stand-in job, with a rank 1 that takes twice as long while the file named by the variable SLOW exists."""

import os
import sys
import time
from pathlib import Path
from typing import Any

from stallwise.elastic import _standin as standin

_made = standin.sleeper


def _slowed(step_s: float, elements: int) -> Any:
    network = _made(step_s, elements)

    def hook(*_: Any) -> None:
        if os.environ["RANK"] == "1" and Path(os.environ["SLOW"]).exists():
            time.sleep(step_s)

    network.register_forward_pre_hook(hook)
    return network


if __name__ == "__main__":
    standin.sleeper = _slowed
    standin.main(sys.argv[1:])
