"""What every command shares: help as people read it, options by one name, and errors that name the option.

`Command` and `Group` are typer's with four differences: paragraphs of a help are joined lines, every help ends with
the examples of `cli/examples.py`, arguments and values are written as in other programs (`RUN`, `[RUN]`, `N`; nothing
after a flag), and the former name of a command or option is answered with the present one.
"""

import copy
import inspect
from collections.abc import Callable
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from stallwise.cli.examples import EXAMPLES
from stallwise.errors import QuantityError, StallwiseError, nearest_names
from stallwise.units import parse_bytes, parse_factor, parse_rate, parse_seconds, parse_usd

if TYPE_CHECKING:
    from typer._click.core import Context

Function = TypeVar("Function", bound=Callable[..., Any])

START, WHAT_IF, MACHINES = "Start here", "Ask what if", "Machines"
DATA, SPOT, CLUSTERS, ADVANCED = "Data", "Spot", "Clusters", "Advanced"
PANELS = (START, WHAT_IF, MACHINES, DATA, SPOT, CLUSTERS, ADVANCED)

# By the path of the command.
_RENAMED_OPTIONS = {
    "compare": {"--fail-over": "--fail-if-slower"},
    "recommend": {
        "--sure": "--confidence",
        "--retired": "--include-retired",
        "--keep-global-batch": "--global-batch N",
        "--data-size": "--dataset-size",
        "--gpus": "--gpu",
        "--machine": "--machine-of",
        "--checkpoint": "--checkpoint-time",
    },
    "predict": {"--count": "--gpus", "--checkpoint": "--checkpoint-time", "--epoch": "--epoch-samples"},
    "whatif": {"--cache": "--cached", "--data-size": "--dataset-size"},
    "simulate": {
        "--checkpoint": "--preemption-time",
        "--network": "--links",
        "--cores": "--concurrency",
        "--jobs": "--jobs-csv",
    },
    "study": {"--networks": "--models"},
    "characterize": {"--networks": "--models", "--network-time": "--model-time"},
    "instances": {"--models": "--networks", "--instance": "--family", "--types": "--family"},
    "overcommit": {"--machines": "--draw", "--cores": "--concurrency"},
    "deflate": {"--batch": "--speed", "--gpu": "--gpu-share", "--dataset": "--dataset-size"},
    "probe": {"--max-mib": "--max-message"},
    "spot plan": {"--machines": "--nodes"},
    "spot chaos": {"--machines": "--nodes", "--limit": "--max-error"},
    "spot watch": {"--each": "--samples-per-worker"},
    "catalog instances": {"--retired": "--include-retired"},
    "catalog offers": {"--retired": "--include-retired"},
    "data warm": {"--limit": "--cache-size"},
    "data bench": {"--most": "--max-concurrency"},
    "data plan": {
        "--cache": "--cache-size",
        "--link": "--store-link",
        "--samples": "--epoch-samples",
        "--store": "--store-prices",
    },
    "data stat": {"--samples": "--epoch-samples", "--store": "--store-prices"},
    "trace import": {"--samples": "--batch"},
}
_RENAMED_COMMANDS = {"show": "stallwise report RUN --detail"}
_QUANTITIES: dict[str, Callable[[str], float]] = {
    "TIME": parse_seconds,
    "SIZE": parse_bytes,
    "RATE": parse_rate,
    "Nx": parse_factor,
    "USD": parse_usd,
}
"""What an option takes, by what its help shows. `PERCENT` is not here: some are of a whole, others may exceed it."""
# typer read one as a space until 0.26, and takes two for an empty line since.
_LINE_BREAK = "\n" if tuple(map(int, typer.__version__.split(".")[:2])) >= (0, 27) else "\n\n"
_METAVARS = {"int": "N", "integer": "N", "float": "N", "path": "PATH", "file": "PATH", "directory": "PATH"}
"""By the name of the type, Python's or click's. Anything else is `TEXT`."""


class Command(TyperCommand):
    """A command that takes part in the differences named above."""

    def __init__(self, **attributes: Any) -> None:
        attributes["help"] = joined_lines(attributes.get("help"))
        super().__init__(**attributes)
        for parameter in self.params:
            _write_as_usual(parameter)

    def get_help_option(self, ctx: "Context") -> Any:
        """The option --help, a flag like others."""
        return _as_flag(super().get_help_option(ctx))

    def format_help(self, ctx: "Context", formatter: Any) -> None:
        """The help, with the examples of this command below it."""
        examples = EXAMPLES.get(_path_of(ctx), ())
        self.epilog = _LINE_BREAK.join(["[bold]Examples[/bold]", *(_escaped(line) for line in examples)])
        super().format_help(ctx, formatter)

    def parse_args(self, ctx: "Context", args: list[str]) -> list[str]:
        """Parse; a former option name is answered with the present one."""
        renamed = _RENAMED_OPTIONS.get(_path_of(ctx), {})
        known = {name for parameter in self.params for name in parameter.opts}
        own_words = args[: args.index("--")] if "--" in args else args
        for word in () if ctx.allow_interspersed_args is False else own_words:
            name = word.partition("=")[0]
            if name in renamed and name not in known:
                ctx.fail(f"No such option: {name}. It is {renamed[name]} now.")
        rest = super().parse_args(ctx, args)
        for parameter in self.params:
            value = ctx.params.get(parameter.name or "")
            if parameter.param_type_name == "option" and isinstance(value, str | PurePath) and str(value) in known:
                ctx.fail(f"Option {max(parameter.opts, key=len)} needs a value: {value} is an option itself.")
        # Where the words of a script are left alone, a mistyped option before it would be taken for the script.
        script = ctx.params.get("script")
        if isinstance(script, str) and script.startswith("-"):
            known_near = nearest_names(script, known, limit=1)
            hint = f" Did you mean {known_near[0]}?" if known_near else ""
            ctx.fail(f"No such option: {script.partition('=')[0]}.{hint} Options of the script come after it.")
        return rest

    def invoke(self, ctx: "Context") -> Any:
        """Run; an error about a text names the option that the text was given to."""
        try:
            self._check_quantities(ctx)
            return super().invoke(ctx)
        except StallwiseError as error:
            if isinstance(error, QuantityError) and not error.fields:
                error.fields = tuple(_options_with(error.text, self.params, ctx.params))
            error.fields = tuple(self._present_name(ctx, field) for field in error.fields)
            raise

    def _check_quantities(self, ctx: "Context") -> None:
        """Parse every quantity that was given, also one that this question turns out not to need."""
        for parameter in self.params:
            value, parse = ctx.params.get(parameter.name or ""), _QUANTITIES.get(str(parameter.metavar))
            if parse is not None and isinstance(value, str):
                parse(value)

    def _present_name(self, ctx: "Context", field: str) -> str:
        """The option for a parameter of the package, where this command calls it something else."""
        option = "--" + field.replace("_", "-")
        known = {name for parameter in self.params for name in parameter.opts}
        renamed = _RENAMED_OPTIONS.get(_path_of(ctx), {})
        return field if option in known else renamed.get(option, option).removeprefix("--")


class Group(TyperGroup):
    """A group of commands; the former name of a command is answered with the present one."""

    def __init__(self, **attributes: Any) -> None:
        attributes["help"] = joined_lines(attributes.get("help"))
        super().__init__(**attributes)

    def get_params(self, ctx: "Context") -> Any:
        """The options, --help among them, flags without a type."""
        parameters = super().get_params(ctx)
        for parameter in parameters:
            _as_flag(parameter)
        return parameters

    def parse_args(self, ctx: "Context", args: list[str]) -> list[str]:
        """Parse; without any word the help and exit code 2, which older versions of click end with 0."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: "Context") -> list[str]:
        """Names in the order of the panels."""
        order = {panel: number for number, panel in enumerate(PANELS)}
        return sorted(super().list_commands(ctx), key=lambda name: order.get(_panel_of(self.commands[name]), 0))

    def resolve_command(self, ctx: "Context", args: list[str]) -> Any:
        """The command that the words name."""
        if args and ctx.parent is None and args[0] in _RENAMED_COMMANDS:
            ctx.fail(f"No such command: {args[0]}. It is `{_RENAMED_COMMANDS[args[0]]}` now.")
        return super().resolve_command(ctx, args)


def _panel_of(command: Any) -> str:
    return str(getattr(command, "rich_help_panel", ""))


def _as_flag(parameter: Any) -> Any:
    if getattr(parameter, "is_flag", False):
        parameter.metavar = ""
        parameter.make_metavar = lambda *_, **__: ""
    return parameter


def joined_lines(text: str | None) -> str | None:
    """Paragraphs as one line each, to be wrapped at the width of the terminal."""
    if text is None:
        return None
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text).split("\n\n"))


def _path_of(ctx: "Context") -> str:
    """The command without the program: `spot plan`."""
    names: list[str] = []
    at: Context | None = ctx
    while at is not None and at.parent is not None:
        names.insert(0, at.info_name or "")
        at = at.parent
    return " ".join(names)


def choices_of(parameter: Any) -> list[str]:
    """The values that a parameter accepts, where they are a closed list."""
    return [str(getattr(choice, "value", choice)) for choice in getattr(_type_of(parameter), "choices", None) or ()]


def _type_of(parameter: Any) -> Any:
    """What describes a parameter's type: typer's own description from 0.28 on, before that click's."""
    return getattr(parameter, "type_descriptor", None) or parameter.type


def _type_name(parameter: Any) -> str:
    kind = _type_of(parameter)
    if not hasattr(kind, "annotation"):
        return str(kind.name).partition(" ")[0]
    inner = getattr(kind.annotation, "__args__", None)  # `Path` of `list[Path]`
    return str((inner[0] if inner else kind.annotation).__name__).lower()


def _write_as_usual(parameter: Any) -> None:
    # What a help asks of a parameter differs between the versions of typer: each reads its own of these.
    if parameter.param_type_name == "argument":
        shown = parameter.metavar or parameter.name.upper()
        shown += "..." if parameter.nargs != 1 and "..." not in shown and "…" not in shown else ""
        parameter.metavar = shown
        parameter.display_type_rich = lambda ctx: None
        parameter.get_usage_pieces = lambda ctx: [shown if parameter.required else f"[{shown}]"]
        if hasattr(parameter, "type"):
            parameter.type = copy.copy(parameter.type)
            parameter.type.get_metavar = lambda *_, **__: ""
    elif parameter.is_flag:
        parameter.metavar = ""
    elif parameter.metavar is None:
        parameter.metavar = "|".join(choices_of(parameter)) or _METAVARS.get(_type_name(parameter), "TEXT")
    parameter.make_metavar = lambda *_, **__: parameter.metavar


def _options_with(text: str, parameters: Any, values: dict[str, Any]) -> list[str]:
    """Names of the options that were given this text, alone or as one of several."""

    def holds(value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return any(holds(one) for one in value)
        return isinstance(value, str) and (value == text or text.strip() in [one.strip() for one in value.split(",")])

    names = [parameter for parameter in parameters if holds(values.get(parameter.name))]
    return [max(parameter.opts, key=len).removeprefix("--") for parameter in names]


def _escaped(line: str) -> str:
    return line.replace("[", r"\[")


class CommandApp(typer.Typer):
    """A group whose commands are of the kinds above."""

    def __init__(self, name: str | None = None, help: str | None = None, **settings: Any) -> None:
        super().__init__(name=name, help=help, cls=Group, rich_markup_mode="rich", **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        """As typer's, with commands of these kinds."""
        return super().command(name, **{"cls": Command, **settings})
