"""`make bench`: run every benchmark, or those named, and keep what came out as a page; exit 1 when a bar was missed.

`python -m benchmarks data.link whatif` runs parts; `--quick` asks those that can for small sizes and keeps nothing,
with `--keep` it keeps them and the page says so. `--checkout PATH` names the source of a peer that cannot be installed.
`evidence/benchmarks.md` is written anew after each, from `benchmarks/kept.json`.
"""

import argparse
import importlib
import os
import pkgutil
import sys
from pathlib import Path

import benchmarks
from benchmarks import page


def main() -> int:
    """Print one line per claim."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="small sizes, where a benchmark has them; nothing is kept")
    parser.add_argument("--keep", action="store_true", help="with --quick: keep what came out")
    parser.add_argument("--checkout", help="source of a peer, where a benchmark needs one")
    options = parser.parse_args()
    if options.quick:
        os.environ["STALLWISE_BENCH_QUICK"] = "1"
    if options.checkout:
        os.environ["STALLWISE_BENCH_CHECKOUT"] = str(Path(options.checkout).resolve())
    names = options.names or [m.name for m in pkgutil.iter_modules(benchmarks.__path__) if m.name[0] != "_"]
    missed = 0
    for name in names:
        module = importlib.import_module(f"benchmarks.{name}")
        if not hasattr(module, "measure"):
            continue
        conditions, results = page.conditions(), []
        for result in module.measure():
            results.append(result)
            missed += result.held is False
            print(f"{result.verdict:<6} {name}: {result.claim}: {result.measured}", flush=True)
        if options.keep or not options.quick:
            note = {"note": "with `--quick`: small sizes where it has them"} if options.quick else {}
            page.keep(name, conditions | note, results)
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
