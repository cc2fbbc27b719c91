"""Small modules that say what they promise: sizes, names and docstrings."""

from __future__ import annotations

import ast
from statistics import median

import pytest

from tests.architecture import tree

LONGEST_FILE = 400
LONGEST_FUNCTION = 40
MEDIAN_FILE = 90

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


@pytest.mark.parametrize("pattern", ["*.py", "*.lua", "*.sql", "*.html"])
def test_no_file_is_long(pattern: str) -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in tree.files(pattern)}
    written = {
        str(path.relative_to(tree.ROOT)): lines
        for path, lines in lengths.items()
        if "migrations" not in path.parts
    }

    assert {path: lines for path, lines in written.items() if lines > LONGEST_FILE} == {}


def test_the_usual_file_is_short() -> None:
    assert (
        median(len(module.text.splitlines()) for module in tree.modules() if not module.is_empty)
        < MEDIAN_FILE
    )


def test_no_function_is_long() -> None:
    long = {
        f"{module}:{function.lineno} {function.name}": lines
        for module in tree.modules()
        for function in module.functions()
        if (lines := _lines_of(function)) > LONGEST_FUNCTION
    }

    assert long == {}


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


def _lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of its body; a long signature or docstring makes nothing harder to read."""
    body = _statements_of(function) or function.body
    return (function.end_lineno or function.lineno) - body[0].lineno + 1


def _statements_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    return [
        statement
        for statement in function.body
        if not isinstance(getattr(statement, "value", None), ast.Constant)
    ]


def _is_a_custom_of_django(module: tree.Module) -> bool:
    return bool({"management", "commands", "api", "settings", "templatetags"} & set(module.path.parts))
