"""Documents whose sentences all have a code: what the tests of every command read its JSON with."""

import functools
import json
import re
from collections.abc import Iterator
from typing import Any

from stallwise.report.schemas import sentence_codes

# Names and facts of several words, and those in words beside a code: `binding` beside `binds`, `differs` and `said`
# beside `name`, `facts.message` beside `kind`. Sources, prices and notes of the catalog are citations.
_NO_SENTENCES = re.compile(
    r"\.(name|phase|differs|system|python|before|after|tier|binding|source|sources\.[\w-]+|note|fleet|said|planned|best"
    r"|cpu_model|prices|facts\.message|method|path|out|run|script|kind|where|arrivals|loads?|cluster|host)$"
)


def coded(text: str) -> Any:
    """The JSON document that a command printed, after every sentence of it was seen to have a code that is published.

    A sentence is any text of three words or more.
    """
    document = json.loads(text)
    bare = [f"{where} = {text}" for where, text in _sentences(document, "") if not _NO_SENTENCES.search(where)]
    assert not bare, "\n".join(bare)
    assert set(_codes(document)) <= _published_codes()
    return document


@functools.cache
def _published_codes() -> set[str]:
    return set(sentence_codes())


def _sentences(value: Any, where: str) -> Iterator[tuple[str, str]]:
    """Every text of three words or more that stands without a code."""
    if isinstance(value, dict):
        has_code = "code" in value
        for key, inner in value.items():
            if not (has_code and isinstance(inner, str)):
                yield from _sentences(inner, f"{where}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from _sentences(inner, where)
    elif isinstance(value, str) and len(value.split()) >= 3 and not value[0].isdigit():
        yield where, value


def _codes(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if {"code", "text"} <= set(value):
            yield value["code"]
        for inner in value.values():
            yield from _codes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _codes(inner)
