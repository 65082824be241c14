"""Conventions of the source that no linter checks: unique class names, options only in cli/, no vague names."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parents[1]
PACKAGE = _ROOT / "src/stallwise"
VAGUE = {"asked", "found", "got", "said", "told", "wanted"}


@cache
def _trees() -> dict[str, ast.Module]:
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def _nodes(*kinds: type[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    for file, tree in _trees().items():
        yield from ((file, node) for node in ast.walk(tree) if isinstance(node, kinds))


def test_a_public_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for file, node in _nodes(ast.ClassDef):
        assert isinstance(node, ast.ClassDef)
        if not node.name.startswith("_"):
            places[node.name].append(f"{file}:{node.lineno}")
    assert len(places) > 300
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_only_the_command_line_knows_its_options() -> None:
    """Below it, errors name parameters (`StallwiseError.fields`)."""
    named = [
        f"{file}:{node.lineno} {node.value!r}"
        for file, node in _nodes(ast.Constant)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and not file.startswith("cli/")
        and id(node) not in _docstrings(file)
        and " " in node.value
        and re.search(r"(^|[\s('`])--[a-z][a-z-]+", node.value)
    ]
    assert named == []


@cache
def _docstrings(file: str) -> set[int]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(_trees()[file]) if isinstance(node, kinds) and node.body]
    return {id(node.body[0].value) for node in nodes if isinstance(node.body[0], ast.Expr)}


def test_names_say_what_a_value_is() -> None:
    """In functions; fields that are names in files and JSON documents stay."""
    vague = [
        f"{file}:{name.lineno} {name.id}"
        for file, function in _nodes(ast.FunctionDef, ast.AsyncFunctionDef)
        for name in ast.walk(function)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store) and name.id in VAGUE
    ]
    assert vague == []


def test_nothing_below_the_command_line_starts_it() -> None:
    """A program of ours is started as a module of its own (`-m stallwise.record`), never as a command."""
    started = [
        f"{file}:{node.lineno}"
        for file, node in _nodes(ast.List, ast.Tuple)
        if isinstance(node, ast.List | ast.Tuple)
        and not file.startswith(("cli/", "web/"))
        and any(
            isinstance(first, ast.Constant)
            and first.value == "-m"
            and isinstance(second, ast.Constant)
            and second.value == "stallwise"
            for first, second in zip(node.elts, node.elts[1:], strict=False)
        )
    ]
    assert started == []


# What runs code of whoever wrote the bytes, or may: by the last part of the name that is called or imported.
UNPICKLES = {
    "pickle": {"load", "loads", "Unpickler"},
    "marshal": {"load", "loads"},
    "shelve": {"open"},
    "yaml": {"load", "unsafe_load", "full_load"},
    "": {
        "C10dRendezvousBackend",
        "all_gather_object",
        "broadcast_object_list",
        "gather_object",
        "scatter_object_list",
        "recv_object_list",
        "read_pickle",
    },
}
UNPICKLING_MODULES = {
    *("cloudpickle", "dill", "joblib", "jsonpickle", "multiprocessing.managers", "ray", "torch.distributed.rpc"),
    *("xmlrpc.server", "multiprocessing.dummy.connection"),
}
# File and name, with what makes sure that the bytes come from the same user's own processes.
MAY_UNPICKLE = {
    (
        "data/shared/_memory.py",
        "pickle.loads",
    ): "batches in anonymous memory, from processes of the same user (SO_PEERCRED)",
    ("cluster/sweep/local.py", "pickle.load"): "pipes between a sweep and the processes that it started",
    ("cluster/sweep/ray.py", "ray"): "Ray's own protocol, between processes of one sweep",
}


def test_nothing_from_a_network_is_unpickled() -> None:
    """A pickle is a program. Whoever adds a place that reads one says here why nobody else can write it."""
    places = {(file, name) for file, node in _nodes(ast.AST) for name in _unpickling(node)}
    assert places == set(MAY_UNPICKLE)  # also: nothing is allowed that is not there


def _unpickling(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in UNPICKLING_MODULES)
    if isinstance(node, ast.ImportFrom):
        if node.module in UNPICKLING_MODULES:
            yield node.module or ""
        members = UNPICKLES.get(node.module or "", set()) | UNPICKLES[""]
        yield from (alias.name for alias in node.names if alias.name in members)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
        options = {option.arg: option.value for option in node.keywords}
        if node.func.attr in UNPICKLES.get(owner, set()):
            yield f"{owner}.{node.func.attr}"
        if node.func.attr in UNPICKLES[""]:
            yield node.func.attr
        if owner == "torch" and node.func.attr == "load" and not _is(options.get("weights_only"), value=True):
            yield "torch.load"
        if node.func.attr == "load" and "allow_pickle" in options and not _is(options["allow_pickle"], value=False):
            yield "allow_pickle"
        if node.func.attr == "recv" and not node.args and not node.keywords:  # a socket's has a length
            yield "Connection.recv"


def _is(node: ast.expr | None, *, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def test_the_search_for_unpickling_sees_every_form() -> None:
    forms = (
        "import pickle\npickle.loads(b)",
        "from pickle import loads",
        "from pickle import Unpickler",
        "import cloudpickle",
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "numpy.load(f, allow_pickle=True)",
        "connection.recv()",
        "torch.distributed.all_gather_object(a, b)",
        "from torch.distributed import gather_object",
        "marshal.loads(b)",
        "yaml.load(text)",
    )
    for form in forms:
        assert [name for node in ast.walk(ast.parse(form)) for name in _unpickling(node)], form
    for form in (
        "torch.load(f, weights_only=True)",
        "numpy.load(f)",
        "socket.recv(5)",
        "json.loads(b)",
        "yaml.safe_load(t)",
    ):
        assert not [name for node in ast.walk(ast.parse(form)) for name in _unpickling(node)], form


def test_times_on_command_lines_have_units() -> None:
    """`--max-time 8s` is refused: 8 of what?"""
    bare = re.compile(r"--(?:max-time|hang-after|wait|model-time|links-time)(?:\"?,? \"?|=)\d+(?:\.\d+)?(?![\d.a-zµ])")
    own = ("tests/test_conventions.py", "tests/cli/")
    for path in tracked_texts():
        if str(path).startswith(own):
            continue
        for line in (_ROOT / path).read_text(encoding="utf-8", errors="replace").splitlines():
            if bare.search(line) and "link_rank" not in line and "machine.device" not in line and "curl" not in line:
                raise AssertionError(f"{path}: {line.strip()[:100]}: write 8s, not 8")


def tracked_texts() -> list[Path]:
    """Python files, documents and Makefiles of the repository."""
    folders = ("src", "tests", "docs", "benchmarks", "validation", "examples")
    paths = [path for name in folders for end in ("*.py", "*.md") for path in (_ROOT / name).rglob(end)]
    return [path.relative_to(_ROOT) for path in (*paths, _ROOT / "README.md", _ROOT / "Makefile")]
