"""Modules say what they promise: names and docstrings. Nothing is said about length: a module is one subject."""

from __future__ import annotations

import ast

from tests.architecture import tree

#: Names that say nothing about what a module is for, so that anything ends up in it.
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

#: Here the word is meant: these are the settings of PostgreSQL, Redis and MongoDB.
MEANT = {"orchestrator.settings.services"}

#: Django reads these by their names; what is in them is plain from there.
SPEAK_FOR_THEMSELVES = {"apps", "urls", "wsgi", "asgi"}


def test_every_name_says_what_a_module_is_for() -> None:
    parts = {
        part: str(module)
        for module in tree.modules()
        if module.name not in MEANT
        for part in module.name.split(".")
    }

    assert {part: path for part, path in parts.items() if part in EMPTY_NAMES} == {}


def test_every_module_begins_with_what_it_promises() -> None:
    silent = [
        str(module)
        for module in tree.modules()
        if not module.is_empty and not module.docstring and module.path.stem not in SPEAK_FOR_THEMSELVES
    ]

    assert silent == []


def test_a_package_that_holds_code_says_what_it_is_for() -> None:
    packages = [module for module in tree.modules() if module.path.name == "__init__.py" and module.is_empty]
    inner = {
        str(module)
        for module in packages
        if module.path.parent.parent != tree.ROOT and not _is_a_custom_of_django(module)
    }

    assert inner == set()


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


def _statements_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    return [
        statement
        for statement in function.body
        if not isinstance(getattr(statement, "value", None), ast.Constant)
    ]


def _is_a_custom_of_django(module: tree.Module) -> bool:
    return bool({"management", "commands", "api", "settings", "templatetags"} & set(module.path.parts))
