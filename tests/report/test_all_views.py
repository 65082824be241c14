"""Every view at every width, drawn from a result that is made of its types: no line is too long and no number is cut.

A result is made field by field from the annotations, with numbers that are wide (millions, thousands of seconds, tiny
fractions) and names that are long. Where a result cannot be made so, its command is in `test_worst_outputs`.
"""

import ast
import dataclasses
import datetime as dt
import enum
import importlib
import inspect
import pkgutil
import re
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Any

import msgspec
import pytest

from stallwise.report import views
from stallwise.sentences import Sentence
from tests.report.test_terminal import WIDTHS, printed
from tests.report.test_worst_outputs import COMMANDS, CUT, UGLY

# Values that a field of this name may have, where any other is refused.
_OF_NAME: dict[str, Any] = {
    "bound": "not reached",
    "until": 1.8e9,
    "cpu": 0.4321,
    "density": 0.1234,
    "gpu": 0.4321,
    "bucket_cap_mb": 25.0,
    "phase": "running",
}
_FLOATS = (1234567.891, 0.000123456, 98765.4321, 3.14159e7, 12.3456)
_INTS = (123456, 7, 98765)
# Views whose results have laws that made numbers break, by the command that draws them.
BY_COMMAND = {
    "deflate.draw_outlook": "deflate",
    "layouts.draw": "layout",
    "layouts.draw_best": "layouts",
    "layouts.draw_recommendation": "recommend layout",
    "predict.draw": "predict",
    "recommend.draw": "recommend",
    "spot.draw_lifetimes": "lifetimes",
    "spot_plan.draw": "spot",
    "tune.draw_bucket_plan": "buckets",
    "whatif.draw": "whatif",
}
ELSEWHERE = {
    "fleet.draw_rehearsal": "tests/fleet/test_cli.py rehearses a plan",
    "spot.draw_chaos": "tests/elastic/test_chaos.py runs some",
    "simulate.draw": "test_a_simulation_has_two_stacked_tables_and_one_legend",
    "study.draw": "tests/cli/test_machine.py draws the study of a few models",
}


def _drawers() -> Iterator[tuple[str, Callable[..., Any]]]:
    for module in pkgutil.iter_modules(views.__path__):
        loaded = importlib.import_module(f"stallwise.report.views.{module.name}")
        for name, function in vars(loaded).items():
            if name.startswith("draw") and inspect.isfunction(function) and function.__module__ == loaded.__name__:
                yield f"{module.name}.{name}", function


DRAWERS = dict(_drawers())


class _Maker:
    """Makes values of types."""

    def __init__(self) -> None:
        self._count = 0

    def make(self, kind: Any, name: str = "") -> Any:
        self._count += 1
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            hints = typing.get_type_hints(kind)
            return kind(
                **{one.name: self.make(hints[one.name], one.name) for one in dataclasses.fields(kind) if one.init}
            )
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            hints = typing.get_type_hints(kind)
            return kind(**{one: self.make(hints[one], one) for one in kind.__struct_fields__})
        if name in _OF_NAME and origin is not typing.Literal:
            return _OF_NAME[name]
        if origin in (typing.Union, types.UnionType):
            return self.make(next(one for one in arguments if one is not type(None)), name)
        if origin is typing.Literal:
            return arguments[self._count % len(arguments)]
        if origin is tuple and arguments[-1] is not Ellipsis:
            return tuple(self.make(one, name) for one in arguments)
        if origin is dict or "Mapping" in str(origin):
            return {self.make(arguments[0], name): self.make(arguments[1], name)}
        if origin is not None:
            made = [self.make(arguments[0], name) for _ in range(2)]
            return made if origin is list else frozenset(made) if origin in (set, frozenset) else tuple(made)
        return self._plain(kind, name)

    def _plain(self, kind: Any, name: str) -> Any:
        plain: dict[Any, Callable[[], Any]] = {
            # A time or a fraction may be tiny; a rate or a number of bytes or operations below one is none.
            float: lambda: 1.234e12 if re.search("_per_s|byte|flop", name) else _FLOATS[self._count % len(_FLOATS)],
            int: lambda: _INTS[self._count % len(_INTS)],
            bool: lambda: bool(self._count % 2),
            str: lambda: f"some-long-{name or 'name'}-of-it",
            Sentence: lambda: Sentence("some.code", f"A sentence about {name or 'something'}."),
            dt.date: lambda: dt.date(2026, 8, 22),
            dt.datetime: lambda: dt.datetime(2026, 8, 22, tzinfo=dt.UTC),
            Path: lambda: Path("/some/folder/of/this"),
            PurePath: lambda: Path("/some/folder/of/this"),
            Any: lambda: "anything",
            type(None): lambda: None,
        }
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return next(iter(kind))
        return plain[kind]()


def _names_of(module: types.ModuleType) -> dict[str, Any]:
    """The names of a module, with those that it imports for annotations alone."""
    names = dict(vars(module))
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            exec(compile(ast.Module(node.body, []), module.__name__, "exec"), names)  # noqa: S102 - the module's own imports
    return names


def _made(function: Callable[..., Any]) -> Any:
    hints = typing.get_type_hints(function, _names_of(inspect.getmodule(function)))  # type: ignore[arg-type]
    needed = [
        one.name
        for one in inspect.signature(function).parameters.values()
        if one.default is one.empty and one.kind is not one.VAR_POSITIONAL
    ]
    return function(*(_Maker().make(hints[name], name) for name in needed))


def test_every_view_is_drawn_here_or_by_a_command() -> None:
    assert set(BY_COMMAND) | set(ELSEWHERE) <= set(DRAWERS)
    assert set(BY_COMMAND.values()) <= set(COMMANDS)


@pytest.mark.parametrize("name", sorted(set(DRAWERS) - set(BY_COMMAND) - set(ELSEWHERE)))
def test_no_view_cuts_a_number(name: str) -> None:
    shown = _made(DRAWERS[name])
    for width in WIDTHS:
        text = printed(shown, width)
        assert max(map(len, text.splitlines())) <= width
        assert not CUT.search(text)
        assert not (match := UGLY.search(text)), match
