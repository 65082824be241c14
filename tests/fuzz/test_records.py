"""Records of somebody else with changed values: every view of the run is drawn, or it is refused in a sentence."""

import json
import os
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stallwise.analysis.analysis import open_run
from stallwise.errors import StallwiseError
from stallwise.report import terminal
from stallwise.report.json import to_json
from stallwise.report.views.profile import document, draw, draw_stash, stash_document
from stallwise.report.views.run import draw_run
from stallwise.run.reader import Run
from tests.report.made_runs import make_full_run

EXECUTIONS = 3000 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 50
NUMBERS = (0, -1, 1, 3, 7, 2**31, 2**62, -(2**63), 1e300, -1e300, 1e9, 1e-320, float("inf"), float("nan"))
WORDS = (
    *(
        "",
        "x",
        "\x1b]0;x\x07",
        "[",
        "{}",
        "[1]",
        "null",
        "nan",
        "as is",
        "no exchange",
        "node only",
        "replay from host",
    ),
    *("9" * 400, "[" * 3000, '{"provider": "x"}'),
)
LEAVES = (None, 0, -1, 1, -5, 2**40, 1e300, 0.5, "", "x", [], {}, True)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield from places(one, (*path, key))


def changed_manifest(document: Any, draw_one: random.Random) -> Any:
    """With one value replaced."""
    document = json.loads(json.dumps(document))
    *path, last = draw_one.choice([place for place in places(document) if place])
    inner = document
    for key in path:
        inner = inner[key]
    inner[last] = draw_one.choice(LEAVES)
    return document


def change_table(path: Path, draw_one: random.Random) -> str:
    """Replace some values of one column by one that it can hold; returns what was done."""
    arrays = dict(np.load(path, allow_pickle=False))
    name = draw_one.choice(sorted(arrays))
    values = arrays[name].copy()
    if not values.size:
        return ""
    at = draw_one.sample(range(values.size), min(values.size, draw_one.choice((1, 3, values.size))))
    if values.dtype == np.uint8:  # letters
        word = draw_one.choice(WORDS).encode()[: values.size]
        values[: len(word)] = np.frombuffer(word, np.uint8)
    else:
        number = draw_one.choice(NUMBERS)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values[at] = np.asarray(number, np.float64).astype(values.dtype)
    np.savez_compressed(path, **arrays | {name: values})
    return f"{path.name}: {name}"


def show(folder: Path) -> None:
    job = open_run(Run.open(folder))
    terminal.draw(draw_run(job.summary))
    for view in (draw(job.profile), draw_stash(job.profile)):
        terminal.draw(view)
    to_json(document(job.profile))
    to_json(stash_document(job.profile))


def test_changed_values_are_shown_or_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    make_full_run(folder)
    show(folder)
    whole = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    tables = sorted(path for path in whole if path.suffix == ".npz")
    manifest = json.loads(whole[folder / "manifest.json"])
    draw_one = random.Random(None if EXECUTIONS > 50 else 5)
    crashes, refused = [], 0
    for _ in range(EXECUTIONS):
        for path, data in whole.items():
            path.write_bytes(data)
        done = []
        for _ in range(draw_one.choice((1, 1, 2, 4))):
            if draw_one.random() < 0.3:
                (folder / "manifest.json").write_text(json.dumps(changed_manifest(manifest, draw_one)))
                done.append("manifest")
            else:
                done.append(change_table(draw_one.choice(tables), draw_one))
        try:
            show(folder)
        except StallwiseError:
            refused += 1
        except Exception as error:  # the point of it
            crashes.append((type(error).__name__, str(error)[:100], done))
    print(f"{EXECUTIONS} executions, {refused} refused")
    assert not crashes


@pytest.mark.parametrize(
    ("table", "column", "value"), [("steps", "data_wait_s", np.nan), ("steps", "duration_s", -1e300)]
)
def test_a_time_that_cannot_be_is_damage(table: str, column: str, value: float, tmp_path: Path) -> None:
    make_full_run(tmp_path)
    path = tmp_path / f"{table}.npz"
    arrays = dict(np.load(path, allow_pickle=False))
    arrays[column] = np.full_like(arrays[column], value)
    arrays.pop(f"{column}.null", None)
    np.savez_compressed(path, **arrays)
    with pytest.raises(StallwiseError, match=f"{column} holds a number beyond"):
        show(tmp_path)
