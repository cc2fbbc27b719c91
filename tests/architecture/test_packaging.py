"""The wheel holds everything that runs: the code, its scripts, statements and templates."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.architecture import tree

DATA = ("*.lua", "*.sql", "*.html", "*.css", "*.js", "*.svg")


def _project() -> dict[str, Any]:
    return tomllib.loads((tree.ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def _data() -> list[str]:
    """Return every file except Python code that is read at run time."""
    files = [path for pattern in DATA for path in tree.files(pattern)]
    files += [path for path in (tree.ROOT / "templates").rglob("*") if path.is_file()]
    return sorted(str(path.relative_to(tree.ROOT)) for path in files)


def test_every_app_and_the_templates_are_packages_of_the_wheel() -> None:
    wheel = _project()["tool"]["hatch"]["build"]["targets"]["wheel"]

    assert set(wheel["packages"]) == {*tree.APPS, "templates"}
    assert "exclude" not in wheel


def test_no_needed_file_is_ignored_by_git() -> None:
    """The wheel leaves out what git ignores."""
    if not (tree.ROOT / ".git").exists():
        pytest.skip("not a clone")

    ignored = subprocess.run(
        ["git", "check-ignore", "--no-index", "--", *_data()],
        cwd=tree.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ignored.stdout == ""


def test_the_licence_and_the_readme_that_the_project_names_exist() -> None:
    project = _project()["project"]

    assert (tree.ROOT / project["readme"]).read_text(encoding="utf-8").startswith("# ")
    assert project["license"] == "Apache-2.0"
    assert "Apache License" in (tree.ROOT / "LICENSE").read_text(encoding="utf-8")


def test_the_wheel_has_the_command_of_manage_py() -> None:
    assert _project()["project"]["scripts"] == {"orchestrator": "orchestrator.command:main"}
    assert "from orchestrator.command import main" in (tree.ROOT / "manage.py").read_text(encoding="utf-8")


def test_a_built_wheel_holds_every_file_that_is_needed(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=tree.ROOT,
        check=True,
        capture_output=True,
    )

    wheel = next(tmp_path.glob("*.whl"))
    names = set(zipfile.ZipFile(wheel).namelist())

    assert set(_data()) - names == set()
    assert {str(module) for module in tree.modules()} - names == set()
    assert "orchestrator/examples/agents/text_agents/__main__.py" in names
    assert "orchestrator/examples/pipelines/content-brief.yaml" in names
    assert "orchestrator/examples/input/urban-beekeeping.md" in names
    assert not {name for name in names if name.startswith(("tests/", "docs/", "examples/", "var/"))}
