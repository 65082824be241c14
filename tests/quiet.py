"""Refuse to measure on a busy machine: `python -m tests.quiet`."""

import sys

import psutil

WINDOW_S = 3.0
BUSY = 0.10  # of all cores


def main() -> int:
    """Exit code 1 where other processes use more than a tenth of the cores."""
    busy = psutil.cpu_percent(WINDOW_S) / 100
    if busy > BUSY:
        print(f"Other processes use {busy:.0%} of this machine's cores; times are measured on a quiet one.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
