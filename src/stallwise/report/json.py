"""The JSON renderer: one document, SI units in the key names, `null` for what is unknown."""

from typing import Any

import msgspec


def to_json(document: Any) -> str:
    """`document` (dataclasses, structs, mappings, dates, paths, enums) as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(document, enc_hook=_plain), indent=2).decode()


def _plain(value: Any) -> Any:
    from pathlib import PurePath

    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
