"""What jobs must have in common is told apart by what it consists of and does, and by nothing else."""

import argparse
import json
import subprocess
import sys
import threading
import time
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from stallwise.data.shared._fingerprint import OpaqueValueError, digest_of
from stallwise.data.shared._identity import collate_fact, dataset_facts, samples_digest
from stallwise.errors import InputError

SIDE = 224
OPTIONS = argparse.Namespace(size=224, lr=0.1)
SETTINGS = {"size": 224, "lr": 0.1}


@dataclass
class Crop:
    """A transform with a setting."""

    side: int


class Resize(Crop):
    """The same setting, and something else done with it."""


class Compose:
    """Transforms one after the other."""

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)


class Files(Dataset[str]):
    """What torchvision's ImageFolder is made of."""

    def __init__(self, files: list[str], transform: Any = None) -> None:
        self.files, self.transform = files, transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> str:
        return self.files[number]


def crop(image: Any) -> Any:
    return image[:SIDE]


def crop_by_option(image: Any) -> Any:
    return image[: OPTIONS.size + SETTINGS["size"]]


def facts(dataset: Dataset[Any]) -> dict[str, str]:
    return {name: digest for name, digest, _ in dataset_facts(dataset, None)}


def differing(one: Dataset[Any], other: Dataset[Any]) -> set[str]:
    mine, theirs = facts(one), facts(other)
    return {name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name)}


def transform_of(side: int, scale: Callable[[float], float]) -> Compose:
    return Compose(scale, Crop(side))


def test_a_lambda_inside_does_not_hide_the_rest() -> None:
    def digest(side: int, scale: Callable[[float], float]) -> str:
        return digest_of(transform_of(side, scale))

    first = digest(224, lambda value: value * 2)
    assert first == digest(224, lambda value: value * 2)
    assert first != digest(160, lambda value: value * 2)
    assert first != digest(224, lambda value: value * 3)


def test_what_holds_itself_comes_to_an_end() -> None:
    one = Compose(lambda value: value)
    one.steps.append(one)
    assert digest_of(one) == digest_of(one)
    nested: list[Any] = []
    nested.append(nested)
    assert digest_of(nested) == digest_of(nested)


@pytest.mark.parametrize(
    ("one", "other", "where"),
    [
        (Files(["train/0", "train/1"]), Files(["test/0", "test/1"]), "dataset.files"),
        (TensorDataset(torch.arange(4.0)), TensorDataset(-torch.arange(4.0)), "dataset.tensors"),
        (Subset(Files(["a", "b", "c"]), [0, 1]), Subset(Files(["a", "b", "c"]), [0, 2]), "dataset.indices"),
        (Subset(Files(["a", "b"]), [0]), Subset(Files(["a", "c"]), [0]), "dataset.dataset.files"),
        (
            ConcatDataset([Files(["a"]), Files(["b"])]),
            ConcatDataset([Files(["a"]), Files(["c"])]),
            "dataset.datasets[1].files",
        ),
        (Files(["a"], Crop(2)), Files(["a"], Resize(2)), "dataset.transform"),
        (Files(["a"], np.arange(3)), Files(["a"], np.arange(3)[::-1]), "dataset.transform"),
        (Files(["a"], np.arange(3)), Files(["a"], np.arange(3).astype(float)), "dataset.transform"),
        (Files(["a"], [Path("x")]), Files(["a"], ["x"]), "dataset.transform"),
    ],
)
def test_data_that_differ_are_told_apart_by_their_path(one: Dataset[Any], other: Dataset[Any], where: str) -> None:
    """Of equal type and length: the first two trained on each other's samples before."""
    assert differing(one, other) == {where}
    assert differing(one, one) == set()


def test_a_global_that_a_function_reads_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[__name__]
    before = digest_of(crop)
    monkeypatch.setattr(module, "SIDE", 64)
    assert digest_of(crop) != before
    monkeypatch.setattr(module, "SIDE", 224)
    assert digest_of(crop) == before


def test_of_a_namespace_only_what_is_used_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of a search differ in their options."""
    before = digest_of(crop_by_option)
    monkeypatch.setattr(OPTIONS, "lr", 0.2)
    monkeypatch.setitem(SETTINGS, "lr", 0.2)
    assert digest_of(crop_by_option) == before
    monkeypatch.setitem(SETTINGS, "size", 8)
    assert digest_of(crop_by_option) != before
    monkeypatch.setitem(SETTINGS, "size", 224)
    monkeypatch.setattr(OPTIONS, "size", 8)
    assert digest_of(crop_by_option) != before


def test_a_class_is_its_methods() -> None:
    def made(code: str) -> Any:
        namespace: dict[str, Any] = {"__name__": "__main__", "Dataset": Dataset}
        body = {"__getitem__": eval(f"lambda self, number: {code}", namespace), "__module__": "__main__"}  # noqa: S307
        namespace["Made"] = type("Made", (Dataset,), body)
        return namespace["Made"]()

    assert digest_of(made("2 * number")) == digest_of(made("2 * number"))
    assert digest_of(made("2 * number")) != digest_of(made("3 * number"))


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    "value",
    [
        {"a", "b", "c", "d"},
        OrderedDict(a=[1, (2, 3)]),
        Point(1, 2),
        SimpleNamespace(lock=threading.Lock(), none=None),
        torch.ones(2, 2).T,
        torch.Generator().manual_seed(3),
        np.random.default_rng(3),
        np.array(["x", None], dtype=object),
        [np.float32(3), torch.float16, torch.nn.Linear, np.sum, len, max],
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.ReLU()),
        [float("nan"), -0.0, 1j, ...],
        (time.struct_time, slice(1, 2), range(3)),
    ],
)
def test_equal_values_are_equal(value: Any) -> None:
    import copy

    try:
        twin = copy.deepcopy(value)
    except TypeError:
        twin = SimpleNamespace(lock=threading.Lock(), none=None)
    assert digest_of(value) == digest_of(twin)
    assert digest_of(value) != digest_of([value, 1])


trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner) | st.frozensets(st.integers())
    ),
    max_leaves=12,
)


@given(trees, trees)
def test_digests_are_equal_where_values_are(one: Any, other: Any) -> None:
    assert (digest_of(one) == digest_of(other)) == (repr(one) == repr(other))


def digests_of_sets() -> list[str]:
    dataset = Subset(Files(sorted({"b", "a"}), Compose(crop, Crop(3), set("abcdefgh"))), [1])
    return [*facts(dataset).values(), digest_of({*"xyz", frozenset("vw")}), digest_of(crop_by_option)]


IN_ANOTHER_PROCESS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from tests.data.test_fingerprint import digests_of_sets
print(json.dumps(digests_of_sets()))
"""


def test_two_processes_agree() -> None:
    """With other hash seeds, and so other orders of sets."""
    program = [sys.executable, "-c", IN_ANOTHER_PROCESS, str(Path(__file__).parents[2])]
    done = subprocess.run(program, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7"})
    assert json.loads(done.stdout) == digests_of_sets()


def test_what_cannot_be_compared_is_refused_unless_it_has_an_identity(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        dataset = Files(["a"], Compose(Crop(1), file))
        with pytest.raises(
            InputError, match=r"dataset\.transform\.steps\[1\] \(_io.TextIOWrapper\) cannot be compared"
        ) as error:
            dataset_facts(dataset, None)
        assert error.value.fields == ("identity",)
        assert dataset_facts(dataset, "v1") == dataset_facts(Files(["a"], file), "v1")
        assert dataset_facts(dataset, "v1") != dataset_facts(dataset, "v2")
        with pytest.raises(InputError, match="collate_fn"):
            collate_fact(lambda batch: file.write(str(batch)), None)
        assert collate_fact(lambda batch: file.write(str(batch)), "v1")
    with pytest.raises(OpaqueValueError, match="generator"):
        digest_of({"numbers": iter(number for number in range(3))})


def test_a_mapped_file_is_what_part_of_which_file_it_is(tmp_path: Path) -> None:
    for name in ("one", "other"):
        np.save(tmp_path / f"{name}.npy", np.arange(5000, dtype=np.int64))
    one, again = (np.load(tmp_path / "one.npy", mmap_mode="r") for _ in range(2))
    other = np.load(tmp_path / "other.npy", mmap_mode="r")
    assert digest_of(one) == digest_of(again)
    assert digest_of(one[1000:]) == digest_of(again[1000:])
    assert len({digest_of(part) for part in (one, other, one[1000:], one[:-1], one[::2], one.view(np.uint64))}) == 6


def test_samples_are_compared_where_they_can_be() -> None:
    def digest(read: Callable[[int], Any]) -> str:
        return samples_digest(read, [0, 2], lambda number: (torch.manual_seed(number), None)[1])

    calls = iter(range(100))
    assert digest(lambda number: torch.rand(2)) == digest(lambda number: torch.rand(2)), "drawn from what is seeded"
    assert digest(lambda number: next(calls)) == digest(lambda number: next(calls)), "never the same: not compared"
    assert digest(lambda number: number) != digest(lambda number: -number)
    assert digest(lambda number: 1 // number) == digest(lambda number: 1 // number), "an error is no reason to refuse"


def test_a_million_labels_take_no_time() -> None:
    """By counting: rows of plain values are never looked at one by one."""
    rows = [(f"train/{number}.jpg", number) for number in range(200_000)]
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        digest_of(rows)
    finally:
        sys.setprofile(None)
    assert calls < 1000
