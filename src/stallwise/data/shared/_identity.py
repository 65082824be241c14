"""What jobs that share batches must have in common, by name: their dataset, its functions, samples, and settings.

Facts are named by their path (`dataset.transform`, `dataset.dataset.files`), so that a job that differs is told where.
A few samples are read as well: what a digest of code and state cannot see (an environment variable, a file that was
changed) shows in them.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import Dataset

from stallwise.data.shared._fingerprint import Digester, OpaqueValueError, digest_of, display_name, state_of
from stallwise.errors import InputError

Fact = tuple[str, str, str]
"""Name, digest and display name of something that jobs must have in common."""
_MOST_FACTS = 256
_MOST_PARTS = 16
_LONGEST_NAME = 200
_RANDOM, _OPAQUE = "random", "opaque"


def fact(name: str, value: Any) -> Fact:
    """Return the fact of a value; `InputError` where it cannot be compared."""
    try:
        return name, digest_of(value, name), display_name(value)
    except OpaqueValueError as error:
        raise _cannot_compare(error) from None


def dataset_facts(dataset: Dataset[Any], identity: str | None) -> list[Fact]:
    """Return the facts of a dataset. With an `identity`, its contents are not looked at."""
    if identity is not None:
        return [("identity", digest_of(identity), repr(identity)), ("dataset", _kind(dataset), _kind(dataset))]
    try:
        return _bounded(list(_walk(Digester("dataset"), "dataset", dataset, set())))
    except OpaqueValueError as error:
        raise _cannot_compare(error) from None


def collate_fact(collate: Callable[[list[Any]], Any], identity: str | None) -> Fact:
    """Return the fact of a collate function; one that cannot be compared is taken at its name with an `identity`."""
    try:
        return "collate_fn", digest_of(collate, "collate_fn"), display_name(collate)
    except OpaqueValueError as error:
        if identity is not None:
            return "collate_fn", display_name(collate), display_name(collate)
        raise _cannot_compare(error) from None


def samples_digest(read: Callable[[int], Any], numbers: Sequence[int], reseed: Callable[[int], None]) -> str:
    """Return the digest of a few samples, each read twice with the same random numbers.

    One that comes out differently the second time is not compared: it draws on a source of its own.
    """
    return digest_of([_sample_digest(read, number, reseed) for number in numbers])


def probed_numbers(dataset: Dataset[Any]) -> list[int]:
    """Return which samples are compared: the first, the middle and the last."""
    length = len(dataset)  # type: ignore[arg-type]
    return sorted({0, length // 2, length - 1}) if length else []


def is_versioned(dataset: Any) -> bool:
    """Whether the facts of a dataset already hold versions of its objects, and reading samples would cost requests."""
    for _ in range(_MOST_PARTS):
        if hasattr(type(dataset), "fingerprint_state"):
            return True
        dataset = getattr(dataset, "dataset", None)
    return False


def _sample_digest(read: Callable[[int], Any], number: int, reseed: Callable[[int], None]) -> str:
    digests = set()
    for _ in range(2):
        reseed(number)
        try:
            digests.add(digest_of(read(number)))
        except OpaqueValueError:
            return _OPAQUE
        except Exception as error:  # whoever takes the batch gets it, with its traceback
            digests.add(type(error).__name__)
    return digests.pop() if len(digests) == 1 else _RANDOM


def _walk(digester: Digester, path: str, dataset: Any, seen: set[int]) -> Iterator[Fact]:
    seen.add(id(dataset))
    try:
        attributes, rest = state_of(dataset)
    except Exception:  # a class's own pickling may raise anything
        raise OpaqueValueError(path, display_name(dataset)) from None
    own = (type(dataset), _length(dataset), rest, sorted(attributes or {}))
    yield path, digester.digest(own).hex(), _kind(dataset)
    for name in sorted(attributes or {}):
        value = (attributes or {})[name]
        parts = value if isinstance(value, (list, tuple)) else ()
        if isinstance(value, Dataset) and id(value) not in seen:
            yield from _walk(digester, f"{path}.{name}", value, seen)
        elif 0 < len(parts) <= _MOST_PARTS and all(isinstance(p, Dataset) and id(p) not in seen for p in parts):
            for number, part in enumerate(parts):
                yield from _walk(digester, f"{path}.{name}[{number}]", part, seen)
        else:
            yield f"{path}.{name}", digester.at(f".{name}", value).hex(), display_name(value)


def _bounded(facts: list[Fact]) -> list[Fact]:
    """Fold into one what would not fit into a message."""
    kept = [one for one in facts if len(one[0]) <= _LONGEST_NAME][: _MOST_FACTS - 1]
    rest = [one for one in facts if one not in kept] if len(kept) < len(facts) else []
    return [*kept, *([("the rest of its dataset", digest_of(rest), f"{len(rest)} more settings")] if rest else [])]


def _kind(dataset: Any) -> str:
    length = _length(dataset)
    return display_name(dataset) + ("" if length is None else f" of {length} samples")


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def _cannot_compare(error: OpaqueValueError) -> InputError:
    return InputError(
        f"Jobs can share batches only of the same data, and {error.path} ({error.shown}) cannot be compared between "
        "them. Give SharedLoader an identity: a name of your own for data and preparation, the same in all jobs.",
        fields=("identity",),
    )
