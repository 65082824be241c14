"""From older record versions to this one: a chain of pure functions on the manifest's dictionary.

A step is filed under the version it reads and returns a document of the next version. Version 1 is the first
that shipped, so there is none yet.
"""

from collections.abc import Callable, Mapping
from typing import Any

Document = dict[str, Any]
Step = Callable[[Document], Document]

STEPS: Mapping[int, Step] = {}


def migrate(document: Document, steps: Mapping[int, Step], target: int) -> Document:
    """`document` brought to version `target` by one step per version; the input is left as it was."""
    current = dict(document)
    for version in range(current["schema_version"], target):
        current = {**steps[version](current), "schema_version": version + 1}
    return current
