"""Documentation that runs: every command shown in README and docs is executed, its output compared."""

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from stallwise.cli.main import app
from tests.conftest import ROOT
from tests.docs.console import (
    COMMAND_LIMIT_S,
    Shown,
    execute,
    fences,
    follow,
    matches,
    programs,
    readers_folder,
    refreshed,
    shown_commands,
    surroundings,
)

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "evidence").glob("*.md")),
]
COMMANDS = {page.relative_to(ROOT).as_posix().removeprefix("docs/"): shown_commands(page) for page in PAGES}
COMPARED = {name: [c for c in shown if not c.measured] for name, shown in COMMANDS.items()}
MEASURED = {name: [c for c in shown if c.measured] for name, shown in COMMANDS.items()}


def _pages(commands: dict[str, list[Shown]], *, soak: bool) -> list[object]:
    """The pages that have such commands, each with the time its commands may take together."""
    found = {name: sum(c.soak == soak for c in shown) for name, shown in commands.items()}
    return [
        pytest.param(name, marks=pytest.mark.timeout(60 + COMMAND_LIMIT_S * len(commands[name])))
        for name, count in found.items()
        if count
    ]


@pytest.mark.parametrize("page", _pages(COMPARED, soak=False))
def test_the_commands_of_a_page_print_what_is_shown(page: str, tmp_path: Path) -> None:
    """In a folder of their own: no page needs what another one, or another test, wrote."""
    _compare([shown for shown in COMPARED[page] if not shown.soak], tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("page", _pages(COMPARED, soak=True))
def test_the_slow_commands_of_a_page_print_what_is_shown(page: str, tmp_path: Path) -> None:
    _compare(COMPARED[page], tmp_path)


@pytest.mark.truth
@pytest.mark.parametrize("page", _pages(MEASURED, soak=False))
def test_the_measurements_of_a_page_succeed(page: str, tmp_path: Path) -> None:
    _measure([shown for shown in MEASURED[page] if not shown.soak], tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("page", _pages(MEASURED, soak=True))
def test_the_slow_measurements_of_a_page_succeed(page: str, tmp_path: Path) -> None:
    _measure(MEASURED[page], tmp_path)


def _compare(commands: list[Shown], folder: Path) -> None:
    (folder / "clone").mkdir()
    (folder / "kept").mkdir()
    wrong = []
    for shown, done in follow(commands, readers_folder(folder / "clone"), surroundings(folder / "kept")):
        assert done.returncode == shown.code, f"{shown}\n{done.stdout}{done.stderr}"
        if shown.output and not matches(shown.output, done.stdout):
            wrong.append(f"{shown}\nshown:\n{shown.output}\nreal:\n{done.stdout}")
    assert not wrong, "\n".join(wrong) + "\n`python -m tests.docs.console PAGE` puts the real output there"


def _measure(commands: list[Shown], folder: Path) -> None:
    """In the repository itself: `make` and the public measurements beside it are used as they are."""
    for shown, done in follow(commands, ROOT, surroundings(folder)):
        assert done.returncode == shown.code, f"{shown}\n{done.stdout}{done.stderr}"


def test_every_kind_of_block_is_there() -> None:
    assert sum(len(shown) for shown in COMPARED.values()) >= 40
    assert sum(len(shown) for shown in MEASURED.values()) >= 20


def test_measuring_commands_are_commands_of_the_program() -> None:
    """`make test` does not measure; a renamed command or option shows here all the same."""
    checked = [
        (shown, arguments)
        for shown in (c for commands in MEASURED.values() for c in commands)
        for arguments in programs(shown.command)
    ]
    assert len(checked) >= 10
    refused = [f"{shown}: {why}" for shown, arguments in checked if (why := _refusal(arguments))]
    assert refused == []


def _refusal(arguments: list[str]) -> str | None:
    """Why the program's parser does not take these arguments, if it does not; nothing is run."""
    command, rest = typer.main.get_command(app), list(arguments)
    while hasattr(command, "commands"):
        name = rest.pop(0) if rest else ""
        if name not in command.commands:
            return f"no command {name!r}"
        command = command.commands[name]
    # `profile` and its like hand unknown options on to the script; before the script there may be none.
    settings = command.context_settings | {"ignore_unknown_options": False}
    try:
        command.make_parser(command.context_class(command, **settings)).parse_args(rest)
    except Exception as refusal:
        return f"{type(refusal).__name__}: {refusal}"
    return None


def _recipes() -> dict[str, list[str]]:
    """Commands of the program in blocks of text and YAML: recipes for machines that are not here."""
    recipes = {}
    for page in (*PAGES, ROOT / "skills/stallwise/SKILL.md"):
        for info, line, body in fences(page):
            if info not in ("text", "yaml"):
                continue
            joined = re.sub(r"\s*\\?\n\s*(?=--)", " ", body)
            for command in re.findall(r"^(?: *|[$#] |srun .*')(stallwise [a-z]+ [^\n#']*)", joined, re.MULTILINE):
                # What `submit` does not know is sbatch's.
                if "…" not in command and "stallwise submit" not in command:
                    recipes[f"{page.name}:{line}: {command}"] = shlex.split(command)[1:]
    return recipes


def test_recipes_are_commands_of_the_program() -> None:
    recipes = _recipes()
    pages = {name.partition(":")[0] for name in recipes}
    assert {"kubernetes.md", "install.md", "ci.md", "SKILL.md", "slurm.md"} <= pages
    assert [f"{name}: {why}" for name, words in recipes.items() if (why := _refusal(words))] == []


def test_the_check_of_commands_can_fail() -> None:
    assert programs("rm -rf x && timeout 5 stallwise ui build --no-browser 2> /dev/null | head; stallwise probe") == [
        ["ui", "build", "--no-browser"],
        ["probe"],
    ]
    assert _refusal(["data", "stat", "--cache", "build/cache"]) is None
    assert _refusal(["data", "state"]) == "no command 'state'"
    assert "--cach" in (_refusal(["data", "stat", "--cach", "build/cache"]) or "")
    assert "--max-tim" in (_refusal(["profile", "--max-tim", "8", "train.py"]) or "")
    assert _refusal(["profile", "--max-time", "8s", "train.py", "--unknown", "1"]) is None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_command_hides_in_another_kind_of_block(page: Path) -> None:
    kinds = {info.split()[0] if info else "" for info, _, _ in fences(page)}
    assert kinds.isdisjoint({"sh", "bash", "shell", ""}), "commands stand in ```console blocks, which are run"


def test_the_comparison_can_fail() -> None:
    assert matches("a\n…\nc\n", "a\nb\nb\nc\n")
    assert matches("a\n…\n", "a\n")
    assert not matches("a\nc\n", "a\nb\nc\n")
    assert not matches("a\n…\nd\n", "a\nb\nc\n")


def test_streams_go_where_a_shell_sends_them(tmp_path: Path) -> None:
    environment = surroundings(tmp_path)
    for command in (
        "report nope 2>&1",
        "report nope 2>&1 >/dev/null",
        "report nope > /dev/null",
        "--version 2> /dev/null",
    ):
        forked = execute(f"stallwise {command}", tmp_path, environment)
        shell = execute(f"true; stallwise {command}", tmp_path, environment)
        assert (forked.returncode, forked.stdout, forked.stderr) == (shell.returncode, shell.stdout, shell.stderr)


def test_what_is_no_longer_true_is_replaced_by_real_output(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ seq 2\n1\n3\n$ seq 3\n1\n…\n$ true\n```\n\n```console measured\n$ seq 1\n7\n```\n")
    text, replaced = refreshed(page)
    assert [shown.command for shown in replaced] == ["seq 2"]
    assert text == page.read_text().replace("1\n3\n", "1\n2\n")
