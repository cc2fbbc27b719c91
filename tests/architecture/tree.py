"""The source tree for the architecture tests: files, modules, imports and calls, without importing them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: From the highest to the lowest. Imports and foreign keys point to the right only.
APPS = ("orchestrator", "console", "pipelines", "activities", "agents", "tenants")


@dataclass(frozen=True)
class Module:
    """One Python file of an app."""

    path: Path

    @cached_property
    def name(self) -> str:
        """The dotted name, as in an import."""
        parts = self.path.relative_to(ROOT).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def syntax(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All syntax nodes, cached because many tests iterate over them."""
        return tuple(ast.walk(self.syntax))

    @property
    def docstring(self) -> str | None:
        return ast.get_docstring(self.syntax)

    @property
    def is_empty(self) -> bool:
        return not self.text.strip()

    @cached_property
    def imports(self) -> frozenset[str]:
        """Every dotted name that is imported, also inside functions: the module, and the names from it."""
        return frozenset(_imported(self))

    def calls(self) -> Iterator[ast.Call]:
        return (node for node in self.nodes if isinstance(node, ast.Call))

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        return (node for node in self.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT))


@cache
def modules() -> tuple[Module, ...]:
    """Return the Python files of all apps, without the migrations that Django writes."""
    return tuple(Module(path) for path in files("*.py") if "migrations" not in path.parts)


def files(pattern: str) -> Iterator[Path]:
    """The files of all apps whose names match."""
    for app in APPS:
        yield from sorted(path for path in (ROOT / app).rglob(pattern) if "__pycache__" not in path.parts)


def called_name(call: ast.Call) -> str:
    """Return the last part of the name that is called: `send_task` of `current_app.send_task(...)`."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def is_in(name: str, places: Iterable[str]) -> bool:
    """Whether the module is one of these modules or in one of these packages."""
    return any(f"{name}.".startswith(f"{place}.") for place in places)


def users_of(*names: str) -> set[str]:
    """Return the modules that import one of these names, or something from them."""
    return {module.name for module in modules() if any(is_in(name, names) for name in module.imports)}


def callers_of(*names: str) -> set[str]:
    """Return the modules that call a function or method with one of these names."""
    return {module.name for module in modules() if any(called_name(call) in names for call in module.calls())}


def _imported(module: Module) -> Iterator[str]:
    package = module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]
    for node in module.nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
