"""No formula for the validator alone: what `validation/` judges, a command or a public function uses."""

from functools import cache

from tests.conftest import ROOT
from tests.validation.reach import Definition, Module, _home, reached, read_modules, used_by

LATER = {
    "cluster.engine._queue.efficiency",
    "spot.lifetimes.fit.published_bathtub",
}
"""Formulas that no command reaches yet. The list only shrinks: wire them up, or move them to `validation/`."""


@cache
def _walk() -> tuple[dict[str, Module], set[Definition]]:
    """Every module, and what commands and public functions lead to."""
    modules = read_modules(ROOT / "src")
    return modules, reached(modules)


def test_what_is_validated_is_what_users_run() -> None:
    modules, found = _walk()
    used = {home for name in used_by(ROOT / "validation") if (home := _home(modules, *name))}
    assert len(used) > 100
    unreached = {f"{module.removeprefix('stallwise.')}.{name}" for module, name in used - found}
    assert unreached - LATER == set(), "validated, and reached by no command or public function"
    assert LATER - unreached == set(), "reached by now: take them off the list"


def test_the_walk_finds_what_commands_call_and_nothing_else() -> None:
    _, found = _walk()
    assert ("stallwise.model.step.setups", "step_times") in found
    assert ("stallwise.spot.lifetimes.fit", "published_bathtub") not in found
