"""Will not be interrupted."""

import time
from pathlib import Path

Path("begun").touch()
until = time.monotonic() + 250
while time.monotonic() < until:
    try:
        time.sleep(1)
    except KeyboardInterrupt:
        Path("asked").touch()
