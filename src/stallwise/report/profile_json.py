"""A profile as a JSON document. Keys are the fields of `Profile`; docs/report.md explains each."""

import math
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import Any

import msgspec

from stallwise.record.profile import Profile


def document(profile: Profile) -> dict[str, Any]:
    """The profile as plain values: None for what is unknown, absent or without bound."""
    return {field.name: plain(getattr(profile, field.name)) for field in fields(Profile)}


def plain(value: Any) -> Any:
    """Dataclasses and structs as mappings, paths as text, numbers that JSON has no word for as None."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, PurePath) else value
