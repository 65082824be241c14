"""Says what it sees of itself, and ends as it is told."""

# Written as people write it: every way of touching files counts here.
# ruff: noqa: PTH109, PTH123, SIM115, S301

from __future__ import annotations

import atexit
import inspect
import json
import multiprocessing
import os
import pickle
import sys

import sibling

COUNT: int = 1


class Thing:
    """Pickled by name."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing)

    __hash__ = None


def child(queue) -> None:
    queue.put([__name__, Thing.__module__])


def main() -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    seen = {
        "argv": sys.argv,
        "names": [__name__, __file__, __package__, __doc__, str(__spec__ and __spec__.name)],
        "annotations": __annotations__,
        "path": sys.path[0],
        "cwd": os.getcwd(),
        "main": sys.modules["__main__"].__dict__ is globals(),
        "pickled": pickle.loads(pickle.dumps(Thing())) == Thing(),
        "source": inspect.getsource(Thing).splitlines()[0],
        "sibling": sibling.NAME,
        "child": queue.get(),
    }
    process.join()
    print(json.dumps(seen), flush=True)
    atexit.register(print, "goodbye from", sibling.NAME, flush=True)
    how = sys.argv[1]
    if how == "text":
        sys.exit("last words")
    if how == "code":
        sys.exit(3)
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "raise":
        try:
            sibling.fail()
        except ValueError as error:
            raise RuntimeError("outer") from error
    if how == "missing":
        open("no such file")
    if how == "hook":
        sys.excepthook = lambda kind, error, trace: print(f"my hook: {kind.__name__}", file=sys.stderr)
        raise ValueError


if __name__ == "__main__":
    main()
