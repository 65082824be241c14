"""Reads the console blocks of a Markdown file: commands after `$ `, and the output that stands beneath them."""

import re
from dataclasses import dataclass
from pathlib import Path

# A fence of ```console holds commands whose output is compared; ```console measured holds commands whose
# output is a measurement: they must succeed, their figures may differ. ```console measured soak: so long that only
# `make soak` runs them.
_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Shown:
    """One command as a reader sees it."""

    file: str
    line: int
    command: str
    output: str
    measured: bool
    soak: bool
    code: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.command}"


def fences(path: Path) -> list[tuple[str, int, str]]:
    """(info string, line number of the body, body) of every fenced block."""
    text = path.read_text()
    return [
        (match["info"].strip(), text.count("\n", 0, match.start("body")) + 1, match["body"])
        for match in _FENCE.finditer(text)
    ]


def shown_commands(path: Path) -> list[Shown]:
    """Every command of every console block; `# exit 1` at its end names an exit code other than 0."""
    found = []
    for info, first_line, body in fences(path):
        words = info.split()
        if not words or words[0] != "console":
            continue
        for piece in re.finditer(r"^\$ (?P<command>[^\n]*)\n(?P<output>(?:(?!\$ ).*\n)*)", body, re.MULTILINE):
            command, _, code = piece["command"].partition("  # exit ")
            line = first_line + body.count("\n", 0, piece.start())
            kinds = "measured" in words, "soak" in words
            found.append(Shown(path.name, line, command, piece["output"], *kinds, int(code or 0)))
    return found


def matches(shown: str, real: str) -> bool:
    """Whether the real output is what is shown; a line of just `…` stands for any number of lines."""
    parts = [re.escape(part) for part in re.split(r"^…\n", _trimmed(shown), flags=re.MULTILINE)]
    return re.fullmatch(r"(?:.*\n)*?".join(parts), _trimmed(real)) is not None


def _trimmed(text: str) -> str:
    return "".join(line.rstrip() + "\n" for line in text.strip("\n").splitlines())
