"""The console blocks of a Markdown page: commands after `$ `, and the output that stands beneath them.

The word after ```console says what a block is for:

- nothing: output is compared, in `make test`. A page's commands run one after another in an empty `build` of their own.
- `measured`: output is a measurement. `make truth` runs them and asks for the exit code; `make test` parses them.
- `soak`: takes too long for both; `make soak` runs it.

`python -m tests.docs.console PAGE…` puts the program's real output in the place of what is shown and no longer true.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.program import DATE_OF_PRICES

ROOT = Path(__file__).parents[2]
COMMAND_LIMIT_S = 200
_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_PIECE = re.compile(r"^\$ (?P<command>[^\n]*)\n(?P<output>(?:(?!\$ ).*\n)*)", re.MULTILINE)
_REDIRECTION = re.compile(r"\d?>&?\s*\S+")
_TO_NOWHERE = re.compile(r" (2>&1|[12]?> ?/dev/null)(?= |$)")
# What makes a line more than one program with its arguments.
_SHELL = re.compile(r"[|&;<>()$`*?\[\]{}~!#]")


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
        assert set(words[1:]) <= {"measured", "soak"}, f"{path.name}:{first_line - 1}: {info}"
        for piece in _PIECE.finditer(body):
            command, _, code = piece["command"].partition("  # exit ")
            line = first_line + body.count("\n", 0, piece.start())
            kinds = "measured" in words, "soak" in words
            found.append(Shown(path.name, line, command, piece["output"], *kinds, int(code or 0)))
    return found


def matches(shown: str, real: str) -> bool:
    """Whether the real output is what is shown; a line of just `…` stands for any number of lines."""
    parts = [re.escape(part) for part in re.split(r"^…\n", _trimmed(shown), flags=re.MULTILINE)]
    return re.fullmatch(r"(?:.*\n)*?".join(parts), _trimmed(real)) is not None


def programs(command: str) -> list[list[str]]:
    """The arguments of every `stallwise …` in a command line of a shell."""
    pieces = shlex.shlex(_REDIRECTION.sub("", command), posix=True, punctuation_chars=";&|()")
    pieces.whitespace_split = True
    found: list[list[str]] = []
    inside = False
    for word in pieces:
        if re.fullmatch(r"[;&|()]+", word):
            inside = False
        elif inside:
            found[-1].append(word)
        elif word == "stallwise":
            found.append([])
            inside = True
    return found


def readers_folder(folder: Path) -> Path:
    """A clone to try things in: all that is in the repository, and a `build` of its own."""
    for entry in ROOT.iterdir():
        if entry.name not in ("build", ".git"):
            (folder / entry.name).symlink_to(entry)
    (folder / "build").mkdir()
    return folder


def execute(command: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command as a reader would; ends after `COMMAND_LIMIT_S`."""
    alone = _TO_NOWHERE.sub("", command)
    if alone.startswith("stallwise ") and not _SHELL.search(alone):
        from tests.program import run_program

        done = run_program(shlex.split(alone)[1:], cwd=folder, env=environment, timeout_s=COMMAND_LIMIT_S)
        return _redirected(done, _TO_NOWHERE.findall(command))
    return subprocess.run(
        ["/bin/bash", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=COMMAND_LIMIT_S,
    )


def _redirected(
    done: subprocess.CompletedProcess[str], redirections: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    """What a shell would have made of the two streams."""
    out: str | None = "out"
    err: str | None = "err"
    for redirection in (one.replace(" ", "") for one in redirections):
        if redirection == "2>&1":
            err = out
        elif redirection.startswith("2"):
            err = None
        else:
            out = None
    printed = (done.stdout if out == "out" else "") + (done.stderr if err == "out" else "")
    return subprocess.CompletedProcess(done.args, done.returncode, printed, done.stderr if err == "err" else "")


def surroundings(kept: Path) -> dict[str, str]:
    """The environment of shown commands: this Python's programs first, and nothing kept among the user's own files."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {"PATH": path, "COLUMNS": "100", "SOURCE_DATE_EPOCH": DATE_OF_PRICES}
    return os.environ | own | {"XDG_CACHE_HOME": str(kept), "XDG_CONFIG_HOME": str(kept)}


def follow(
    commands: Sequence[Shown], folder: Path, environment: dict[str, str]
) -> Iterator[tuple[Shown, subprocess.CompletedProcess[str]]]:
    """Run the commands of one page in their order; those that build on an earlier one find what it wrote."""
    for shown in commands:
        yield shown, execute(shown.command, folder, environment)


def refreshed(page: Path) -> tuple[str, list[Shown]]:
    """The page with real output where what is shown is no longer true, and the commands that concerns."""
    wrong: dict[int, Shown] = {}
    with tempfile.TemporaryDirectory() as clone, tempfile.TemporaryDirectory() as kept:
        compared = [shown for shown in shown_commands(page) if not shown.measured]
        for shown, done in follow(compared, readers_folder(Path(clone)), surroundings(Path(kept))):
            if done.returncode != shown.code:
                raise SystemExit(f"{shown}\nexit {done.returncode}\n{done.stdout}{done.stderr}")
            if shown.output and not matches(shown.output, done.stdout):
                wrong[shown.line] = replace(shown, output=_trimmed(done.stdout))
    text = page.read_text()
    lines = text.splitlines(keepends=True)
    # From the last one up, so that the line numbers of those above stay true.
    for line, shown in sorted(wrong.items(), reverse=True):
        end = line
        while not lines[end].startswith(("$ ", "```")):
            end += 1
        lines[line:end] = [shown.output]
    return "".join(lines), list(wrong.values())


def _trimmed(text: str) -> str:
    return "".join(line.rstrip() + "\n" for line in text.strip("\n").splitlines())


def main(pages: Sequence[str]) -> None:
    """Refresh the pages and say which commands' output was replaced."""
    for page in map(Path, pages):
        text, replaced = refreshed(page)
        page.write_text(text)
        for shown in replaced:
            sys.stdout.write(f"{shown}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
