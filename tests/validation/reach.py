"""Which definitions of the package a command or a public function leads to, through any chain of references."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

Definition = tuple[str, str]
"""Module and name."""

ENTRY_POINTS = ("stallwise.cli", "stallwise.web", "stallwise.api", "stallwise.__main__", "stallwise.record.__main__")
_STARTED = re.compile(r'"-m", "(stallwise[.\w]+)"')
"""Programs that commands start as processes of their own."""


@dataclass
class Module:
    """The definitions of one module, and what their names refer to elsewhere."""

    name: str
    definitions: dict[str, ast.AST] = field(default_factory=dict)
    imports: dict[str, Definition] = field(default_factory=dict)
    """Local name -> where it comes from; the name part is empty for a module."""
    starts: set[str] = field(default_factory=set)
    """Modules that it runs as programs."""
    exports: set[Definition] = field(default_factory=set)
    """What the package offers lazily (`lazy.loader`)."""


def read_modules(source: Path) -> dict[str, Module]:
    """Every module under `source`."""
    found = {}
    for path in sorted((source / "stallwise").rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        found[name] = _read(name, ast.parse(text))
        found[name].starts = set(_STARTED.findall(text))
    return found


def _read(name: str, tree: ast.Module) -> Module:
    module = Module(name)
    for node in tree.body:
        for defined in _names_of(node):
            module.definitions[defined] = node
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                module.imports[alias.asname or alias.name] = (node.module, alias.name)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "loader":
            homes = ast.literal_eval(node.args[1])
            module.exports |= {(f"{name}.{home}", exported) for exported, home in homes.items()}
    return module


def _names_of(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def reached(modules: dict[str, Module]) -> set[Definition]:
    """Everything that an entry point, or a name that a package offers, refers to."""
    roots = {exported for module in modules.values() for exported in module.exports}
    programs = set().union(*(module.starts for module in modules.values()))
    roots |= {
        (name, defined)
        for name, module in modules.items()
        if name.startswith(ENTRY_POINTS) or name in programs
        for defined in module.definitions
    }
    seen: set[Definition] = set()
    queue = list(roots)
    while queue:
        here = _home(modules, *queue.pop())
        if here is None or here in seen:
            continue
        seen.add(here)
        queue += _references(modules, here)
    return seen


def _home(modules: dict[str, Module], module: str, name: str) -> Definition | None:
    """Where a name is defined, through re-imports."""
    for _ in range(10):
        known = modules.get(module)
        if known is None:
            return None
        if name in known.definitions:
            return module, name
        if name not in known.imports:
            return None
        module, name = known.imports[name]
    return None


def _references(modules: dict[str, Module], here: Definition) -> Iterator[Definition]:
    module = modules[here[0]]
    for node in ast.walk(module.definitions[here[1]]):
        if isinstance(node, ast.Name):
            yield module.imports.get(node.id, (module.name, node.id))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            package, name = module.imports.get(node.value.id, ("", ""))
            yield f"{package}.{name}", node.attr
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)


def used_by(folder: Path) -> set[Definition]:
    """What the files of a folder import from the package."""
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stallwise"):
                found |= {(str(node.module), alias.name) for alias in node.names}
    return found
