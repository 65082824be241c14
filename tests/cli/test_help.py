"""The help of every command: panels, examples that parse, values as people write them; former names; exit codes."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from stallwise.cli import commands
from stallwise.cli.examples import EXAMPLES
from stallwise.cli.main import app
from stallwise.cli.predict import FrameworkName, OverlapScheme
from stallwise.model.exchange.overlap import FRAMEWORKS, SCHEMES
from tests.conftest import Cli


def _leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from _leaves(inner, (*path, name))
    else:
        yield " ".join(path), command


ROOT = typer.main.get_command(app)
LEAVES = dict(_leaves(ROOT))


def test_every_command_stands_in_a_panel() -> None:
    panels = {name: command.rich_help_panel for name, command in ROOT.commands.items()}  # type: ignore[attr-defined]
    assert set(panels.values()) == set(commands.PANELS)
    start = {name for name, panel in panels.items() if panel == commands.START}
    assert start == {"profile", "report", "tune", "compare", "ui", "doctor"}


def test_the_panels_are_in_order(ask: Cli) -> None:
    text = ask("--help").stdout
    places = [text.index(f"─ {panel} ─") for panel in commands.PANELS]
    assert places == sorted(places)
    assert "70 a bug in Stallwise" in " ".join(text.split())


def test_every_command_has_two_examples_that_parse() -> None:
    assert set(EXAMPLES) == set(LEAVES)
    for path, lines in EXAMPLES.items():
        assert len(lines) >= 2, path
        for line in lines:
            program, *words = shlex.split(line)
            assert program == "stallwise"
            assert words[: len(path.split())] == path.split()
            LEAVES[path].make_context(path, words[len(path.split()) :])  # raises where an option is unknown


@pytest.mark.parametrize("path", sorted(LEAVES))
def test_help_is_written_as_in_other_programs(ask: Cli, path: str) -> None:
    text = ask(*path.split(), "--help").stdout
    assert "Examples" in text
    usage_and_types = [line for line in text.splitlines() if "Usage:" in line or line.startswith("│")]
    assert not [line for line in usage_and_types if re.search(r"<[a-z]|\[\[|\{|bool", line)]


def test_every_command_answers_in_json() -> None:
    assert [
        path for path, leaf in LEAVES.items() if "--json" not in {name for one in leaf.params for name in one.opts}
    ] == []


def test_choices_are_those_of_the_model() -> None:
    assert tuple(OverlapScheme) == SCHEMES
    assert set(FrameworkName) == set(FRAMEWORKS)


@pytest.mark.parametrize(
    ("words", "present"),
    [
        (("show", "run"), "stallwise report RUN --detail"),
        (("compare", "a", "b", "--fail-over", "5%"), "--fail-if-slower"),
        (("recommend", "run", "--sure", "90%"), "--confidence"),
        (("predict", "run", "--count", "2"), "--gpus"),
        (("whatif", "run", "--cache=80%"), "--cached"),
        (("data", "plan", "run", "--cache", "1GB"), "--cache-size"),
        (("data", "bench", "s3://b", "--most", "4"), "--max-concurrency"),
        (("deflate", "run", "--batch", "50%"), "--speed"),
        (("spot", "watch", "folder", "--each", "3"), "--samples-per-worker"),
    ],
)
def test_a_former_name_is_answered_with_the_present_one(ask: Cli, words: tuple[str, ...], present: str) -> None:
    done = ask(*words, code=2)
    assert "now" in done.stderr
    assert present in done.stderr


def test_former_names_lead_to_options_that_exist() -> None:
    for path, renamed in commands._RENAMED_OPTIONS.items():
        known = {name for parameter in LEAVES[path].params for name in parameter.opts}
        for former, present in renamed.items():
            assert former not in known, (path, former)
            assert present.split()[0] in known, (path, present)


def test_a_bug_ends_with_70_and_a_log(ask: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stallwise.cli import output

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("as a bug would")

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(output, "option_names", broken)
    monkeypatch.setattr("stallwise.machine.doctor.diagnose", broken)
    done = ask("doctor", code=70)
    assert "Please report it" in done.stderr
    assert done.stderr.count("\n") == 1
    (log,) = (tmp_path / "state").rglob("error-*.log")
    assert str(log) in done.stderr
    assert "ZeroDivisionError: as a bug would" in log.read_text()
    assert log.stat().st_mode & 0o077 == 0


def test_a_missing_extra_is_one_sentence(ask: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'numba'", name="numba")

    monkeypatch.setattr("stallwise.machine.doctor.diagnose", absent)
    assert ask("doctor", code=2).stderr.strip().endswith("needs numba: pip install 'stallwise[sim]'")


def test_an_option_is_not_taken_for_the_value_of_the_one_before(ask: Cli, tmp_path: Path) -> None:
    done = ask("report", str(tmp_path), "--html", "--json", code=2)
    assert "Option --html needs a value: --json is an option itself." in done.stderr
    assert "--steps': a whole number was expected." in ask("spot", "plan", "--steps", "1e6", code=2).stderr
