"""Reads who imports whom, and which imports the house rules forbid.

The rules are DESIGN's: a package imports from the floors above its own, on its own floor only where `BESIDE`
says so, never from below. Imports inside functions count too: laziness is about time, not about dependence.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

# From the top floor down. Names are modules or packages directly under `stallwise`.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors", "lazy", "units"),
    ("hardware", "workload", "run"),
    ("model",),
    ("record",),
    ("spot", "cloud", "cluster"),
    ("data", "elastic", "slurm", "deflate", "buckets", "tune"),
    ("report",),
    ("cli", "web", "notebook"),
)
BESIDE = {
    ("cli", "web"),
    ("cloud", "spot"),
    ("cluster", "spot"),
    ("elastic", "data"),
    ("elastic", "deflate"),
    ("run", "hardware"),
    ("run", "workload"),
    ("tune", "data"),
}

# The package itself and its `-m` entry may point at the doors.
ENTRIES = {"", "__main__"}

TORCH_ALLOWED = {"record", "data", "elastic", "buckets", "tune"}
# `model/` is arithmetic: nothing that opens a file, starts a process or pulls a data frame, however far away.
MODEL_FORBIDDEN = {
    "torch",
    "polars",
    "pathlib",
    "os",
    "io",
    "shutil",
    "subprocess",
    "socket",
    "tempfile",
    "rich",
    "typer",
}


def floor_of(part: str) -> int:
    """The floor a package lives on, counted from the top; a package nobody placed is an error."""
    for number, parts in enumerate(FLOORS):
        if part in parts:
            return number
    raise LookupError(f"stallwise.{part} stands on no floor: add it to FLOORS and to docs/architecture.md")


def imports_of(tree: ast.AST, module: str, *, package: bool) -> Iterator[str]:
    """Absolute names of everything a module imports, except what only a type checker reads."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            skipped.update(id(inner) for inner in ast.walk(node))
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                keep = len(parents) - node.level + (1 if package else 0)
                base = ".".join([*parents[:keep], *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def read_graph(source: Path, root: str = "stallwise") -> dict[str, set[str]]:
    """Module -> what it imports: modules of `root` by full name, anything else by its top name."""
    files = {_module_name(path, source): path for path in (source / root).rglob("*.py")}
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        names = set(imports_of(ast.parse(path.read_text()), module, package=path.name == "__init__.py"))
        inside = {name for name in names if name in files}
        # Importing a.b.c runs a/__init__ and a.b/__init__ as well.
        inside |= {parent for name in inside for parent in _parents(name) if parent in files}
        outside = {name.partition(".")[0] for name in names} - {root}
        graph[module] = (inside | outside) - {module, root}
    return graph


def _module_name(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _parents(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def reach(graph: dict[str, set[str]], module: str) -> dict[str, tuple[str, ...]]:
    """Everything `module` leads to, with the chain of imports that leads there."""
    chains: dict[str, tuple[str, ...]] = {module: (module,)}
    queue = [module]
    while queue:
        here = queue.pop()
        for name in sorted(graph.get(here, ())):
            if name not in chains:
                chains[name] = (*chains[here], name)
                queue.append(name)
    return chains


def part_of(module: str) -> str:
    """`stallwise.run.reader` -> `run`; the root itself -> ``."""
    return [*module.split("."), ""][1]


def violations(graph: dict[str, set[str]], root: str = "stallwise") -> list[str]:
    """Every import against the rules, as a sentence with the chain that makes it."""
    found = []
    for module in sorted(graph):
        part = part_of(module)
        if part in ENTRIES:
            continue
        for target, chain in reach(graph, module).items():
            sentence = _forbidden(part, target, root)
            if sentence:
                found.append(f"{sentence}: {' -> '.join(chain)}")
    return found


def _forbidden(part: str, target: str, root: str) -> str | None:
    if target.startswith(f"{root}."):
        other = part_of(target)
        if other == part:
            return None
        below = floor_of(other) > floor_of(part)
        beside = floor_of(other) == floor_of(part) and floor_of(part) > 0 and (part, other) not in BESIDE
        return f"{part}/ must not reach {other}/" if below or beside else None
    if part == "model" and target in MODEL_FORBIDDEN:
        return f"model/ must not reach {target}"
    if target == "torch" and floor_of(part) < floor_of("record"):
        return f"{part}/ must not reach torch"
    return None


def third_party(graph: dict[str, set[str]]) -> set[str]:
    """Top names of packages outside the standard library."""
    names = {name for targets in graph.values() for name in targets if "." not in name}
    return {name for name in names if name not in sys.stdlib_module_names and name != "stallwise"}
