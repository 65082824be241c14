"""`make bench`: run every benchmark, or those named; exit 1 when a bar is not held.

`python -m benchmarks data.link whatif` runs parts; `--quick` asks those that can for small sizes.
"""

import importlib
import os
import pkgutil
import sys

import benchmarks


def main() -> int:
    """Print one line per claim."""
    words = sys.argv[1:]
    if "--quick" in words:
        words.remove("--quick")
        os.environ["STALLWISE_BENCH_QUICK"] = "1"
    names = words or [m.name for m in pkgutil.iter_modules(benchmarks.__path__) if m.name[0] != "_"]
    missed = 0
    for name in names:
        module = importlib.import_module(f"benchmarks.{name}")
        if not hasattr(module, "measure"):
            continue
        for result in module.measure():
            missed += not result.held
            print(
                f"{'held  ' if result.held else 'MISSED'} {name}: {result.claim}: {result.measured}",
                flush=True,
            )
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
