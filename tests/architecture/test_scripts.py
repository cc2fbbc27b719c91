"""Lua and SQL are in files that begin with their contract, and every file is used."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tests.architecture import tree
from tests.cases import in_one_test

LIBRARIES = {"library.lua", "files.lua"}  # prepended to every admission script and never called alone

#: Run once, by a migration.
RUN_BY_MIGRATIONS = {
    "roles.sql",
    "guards.sql",
    "numbering.sql",
    "content.sql",
    "record.sql",
    "events_of_activities.sql",
    "configuration_changes.sql",
}

LUA = tuple(tree.files("*.lua"))
SQL = tuple(tree.files("*.sql"))


def _name(path: Path) -> str:
    return str(path.relative_to(tree.ROOT))


def _header(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    end = next(number for number, line in enumerate(lines) if not line.startswith("--"))
    return "\n".join(lines[:end])


@cache
def _sources(app: str) -> tuple[str, ...]:
    """Return the texts of the Python files of an app, including migrations."""
    return tuple(source.read_text(encoding="utf-8") for source in (tree.ROOT / app).rglob("*.py"))


@in_one_test("path", LUA, ids=_name)
def test_a_script_says_what_it_does_with_which_keys(path: Path) -> None:
    header = _header(path)

    assert re.match(r"-- [A-Z].{20,}", header), "the first line says what the script does"
    assert re.search(r"^-- KEYS\[1\] +\S", header, re.MULTILINE)


@in_one_test("path", [path for path in LUA if path.name not in LIBRARIES], ids=_name)
def test_a_script_says_what_it_takes_and_returns(path: Path) -> None:
    header = _header(path)

    assert re.search(r"^-- ARGV(\[1\])? +\S", header, re.MULTILINE)
    assert re.search(r"^-- Returns +\S", header, re.MULTILINE)


@in_one_test("path", LUA, ids=_name)
def test_a_script_takes_the_time_from_redis_and_sets_no_globals(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert "os.time" not in text
    assert "os.clock" not in text
    assert re.findall(r"^(?:\s*)(?:function \w+|\w+ = function)", text, re.MULTILINE) == []
    assert not re.search(r'call\("KEYS"|call\(\'KEYS\'', text), "KEYS walks the whole database"


@in_one_test("path", [path for path in SQL if path.name not in RUN_BY_MIGRATIONS], ids=_name)
def test_a_statement_says_what_it_does_takes_and_returns(path: Path) -> None:
    header = _header(path)

    assert re.match(r"-- [A-Z].{12,}", header), "the first line says what the statement does"
    assert "%(" not in path.read_text(encoding="utf-8") or re.search(
        r"^-- Parameters +\S", header, re.MULTILINE
    )
    assert re.search(r"^-- Returns +\S", header, re.MULTILINE)


@in_one_test("path", [path for path in SQL if path.name not in RUN_BY_MIGRATIONS], ids=_name)
def test_the_header_of_a_statement_names_every_parameter(path: Path) -> None:
    parameters = re.search(
        r"^-- Parameters(.+?)(?=^-- (?:Returns|Guarantee|Plan)|\Z)", _header(path), re.MULTILINE | re.DOTALL
    )

    used = set(re.findall(r"%\((\w+)\)s", path.read_text(encoding="utf-8")))

    # `claim_target` may also be written as "claim: target".
    named = set(re.findall(r"\w+", parameters[1])) if parameters else set()
    assert {name for name in used if name not in named and not set(name.split("_")) <= named} == set()


@in_one_test("path", [path for path in (*LUA, *SQL) if path.name not in LIBRARIES], ids=_name)
def test_every_file_is_loaded_by_its_own_app(path: Path) -> None:
    texts = _sources(path.relative_to(tree.ROOT).parts[0])

    by_name = any(f'"{path.stem}"' in text or path.name in text for text in texts)
    # Folders below `sql` and `lua` may be loaded as a whole.
    is_below = path.parent.name not in {"sql", "lua"}
    with_its_folder = is_below and any("glob(" in text and f'"{path.parent.name}"' in text for text in texts)

    assert by_name or with_its_folder


def test_redis_key_names_are_built_in_one_module_of_each_package() -> None:
    makers = {
        module.name
        for module in tree.modules()
        if "ORCHESTRATOR_REDIS_PREFIX" in module.text and ".settings" not in module.name
    }

    assert all(name.endswith(".keys") for name in makers), sorted(makers)


def test_no_python_file_contains_lua() -> None:
    assert [str(module) for module in tree.modules() if "redis.call(" in module.text] == []
