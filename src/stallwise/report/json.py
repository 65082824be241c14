"""The JSON renderer: one document, SI units in the key names, `null` for what is unknown."""

import math
import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import Any

import msgspec

from stallwise.sentences import Sentence, sentence_document


def to_json(document: Any) -> str:
    """`document` (dataclasses, structs, mappings, dates, paths, enums) as indented JSON that a terminal can show."""
    text = msgspec.json.format(msgspec.json.encode(document, enc_hook=_path_text), indent=2).decode()
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


# Control characters of the second set and those that turn the direction of text; msgspec escapes the first set.
_UNPRINTABLE = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def _path_text(value: Any) -> Any:
    return str(value) if isinstance(value, PurePath) else sentence_document(value)


VERSION = 1
"""Of every document. Keys may be added without a new one; those listed in the documentation stay."""


def schema(name: str) -> dict[str, Any]:
    """The first key of a document: what it is, and the version of its keys."""
    return {"schema": {"name": f"stallwise/{name}", "version": VERSION}}


def with_schema(document: Any) -> Any:
    """A document with its schema: the name of its class, where it does not say itself; a list becomes its `rows`."""
    if isinstance(document, dict):
        return document if "schema" in document else schema("document") | document
    if isinstance(document, list | tuple):
        name = type(document[0]).__name__ if document else "row"
        return schema(f"{_kebab(name)}s") | {"rows": document}
    names = (
        document.__struct_fields__
        if isinstance(document, msgspec.Struct)
        else [field.name for field in fields(document)]
        if is_dataclass(document)
        else None
    )
    if names is None or (isinstance(document, msgspec.Struct) and "schema_version" in names):
        return document  # a record that is also a file, and says its version itself
    return schema(document_name(type(document))) | {name: getattr(document, name) for name in names}


def document_name(result: type) -> str:
    """The name of the document that is a result of this class: `run-summary` of `RunSummary`."""
    return _kebab(result.__name__)


def _kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


def error_document(code: str, sentence: str, options: Sequence[str], exit_code: int) -> dict[str, Any]:
    """An error: its code, the sentence, the options it is about, and the exit code."""
    error = {"code": code, "message": sentence, "options": list(options), "exit_code": exit_code}
    return schema("error") | {"error": error}


def plain(value: Any) -> Any:
    """Dataclasses and structs as mappings, paths as text, NaN and infinity as None."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Sentence):
        return sentence_document(value)
    return str(value) if isinstance(value, PurePath) else value
