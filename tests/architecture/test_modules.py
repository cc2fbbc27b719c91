"""Modules have telling names and docstrings. There is no rule about their length: a module is one subject."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from tests.architecture import tree

#: Names that do not tell what a module is for, so that anything ends up in it.
EMPTY_NAMES = {
    "utils",
    "util",
    "helpers",
    "helper",
    "services",
    "service",
    "common",
    "core",
    "misc",
    "lib",
    "shared",
    "base_utils",
}

#: Here the word has its meaning: these are the settings of PostgreSQL, Redis and MongoDB.
ALLOWED = {"orchestrator.settings.services"}

#: Django imports these by their names, which tell what is in them.
NEED_NO_DOCSTRING = {"apps", "urls", "wsgi", "asgi"}


def test_every_module_name_tells_what_the_module_is_for() -> None:
    parts = {
        part: str(module)
        for module in tree.modules()
        if module.name not in ALLOWED
        for part in module.name.split(".")
    }

    assert {part: path for part, path in parts.items() if part in EMPTY_NAMES} == {}


def test_every_module_has_a_docstring() -> None:
    silent = [
        str(module)
        for module in tree.modules()
        if not module.is_empty and not module.docstring and module.path.stem not in NEED_NO_DOCSTRING
    ]

    assert silent == []


def test_every_package_has_a_docstring() -> None:
    packages = [module for module in tree.modules() if module.path.name == "__init__.py" and module.is_empty]
    inner = {
        str(module)
        for module in packages
        if module.path.parent.parent != tree.ROOT and not _is_a_convention_of_django(module)
    }

    assert inner == set()


def test_every_name_of_a_module_is_defined_once() -> None:
    """The later value of a constant would also be used by the functions above it."""
    twice = {
        str(module): names
        for module in tree.modules()
        if (names := [name for name, times in Counter(_names_of(module)).items() if times > 1])
    }

    assert twice == {}


def test_tasks_are_one_call_long_and_named() -> None:
    tasks = [
        (module, function)
        for module in tree.modules()
        for function in module.functions()
        if any(
            "shared_task" in ast.unparse(decorator) or ".task" in ast.unparse(decorator)
            for decorator in function.decorator_list
        )
    ]

    assert tasks
    assert [str(module) for module, _ in tasks if module.path.name != "tasks.py"] == []
    assert [function.name for _, function in tasks if len(_statements_of(function)) != 1] == []
    assert [
        function.name for _, function in tasks if "name=" not in ast.unparse(function.decorator_list[0])
    ] == []


def _names_of(module: tree.Module) -> Iterator[str]:
    for node in module.syntax.body:
        match node:
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.FunctionDef(name=name) | ast.ClassDef(name=name)
            ):
                yield name


def _statements_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    return [
        statement
        for statement in function.body
        if not isinstance(getattr(statement, "value", None), ast.Constant)
    ]


def _is_a_convention_of_django(module: tree.Module) -> bool:
    return bool({"management", "commands", "api", "settings", "templatetags"} & set(module.path.parts))
