"""Imported by `faithful` from its own folder."""

NAME = "sibling"


def fail() -> None:
    raise ValueError("inner")
