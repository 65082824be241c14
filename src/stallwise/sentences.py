"""Sentences for people, each with a code and facts that say the same to a program.

In a JSON document, and in a run record, a sentence is
`{"code": "links.message-limit", "text": "The largest messages …", "max_s": 5.0}`.
"""

from collections.abc import Mapping
from typing import Any

FactValue = str | int | float | bool | None


class Sentence(str):
    """Text that carries its code; everywhere but in JSON it is used as the text that it is.

    Attributes:
        code: What a program can compare. Codes stay when wordings change.
        facts: The quantities of the sentence by name, in base units, with the unit in the name.

    Examples:
        >>> note = Sentence("batch.passes", "A step takes 2 passes.", passes=2)
        >>> print(note, note.code, note.facts)
        A step takes 2 passes. batch.passes {'passes': 2}
    """

    __slots__ = ("code", "facts")
    code: str
    facts: Mapping[str, FactValue]

    def __new__(cls, code: str, text: str, /, **facts: FactValue) -> "Sentence":
        """A sentence from its code, its text and its facts."""
        sentence = super().__new__(cls, text)
        sentence.code, sentence.facts = code, facts
        return sentence

    def __getnewargs_ex__(self) -> tuple[tuple[str, str], dict[str, FactValue]]:
        """What a copy or another process makes the sentence from."""
        return (self.code, str(self)), dict(self.facts)


RECORDED = "recorded"
"""Code of a sentence from a record that kept only the text."""


def sentence_document(value: Any) -> dict[str, FactValue]:
    """A sentence as a mapping: what msgspec calls for a type that it does not know (`enc_hook`)."""
    if isinstance(value, Sentence):
        return {"code": value.code, "text": str(value), **value.facts}
    raise TypeError(f"{type(value).__name__} has no JSON form")


def read_sentence(kind: type, value: Any) -> Any:
    """The reverse (`dec_hook`); a bare text, as records had it at first, has the code `RECORDED`."""
    if kind is not Sentence:
        raise TypeError(f"{kind.__name__} is not read from JSON")
    if isinstance(value, str):
        return Sentence(RECORDED, value)
    if not isinstance(value, dict) or not all(isinstance(value.get(key), str) for key in ("code", "text")):
        raise ValueError("a sentence needs a code and a text")
    facts = {key: fact for key, fact in value.items() if isinstance(fact, FactValue) and key not in ("code", "text")}
    return Sentence(value["code"], value["text"], **facts)
