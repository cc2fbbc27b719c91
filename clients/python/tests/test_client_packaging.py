"""The package can be installed by itself: it is complete, typed, and asks for httpx and nothing else."""

from __future__ import annotations

import ast
import email
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1]
SOURCE = PACKAGE / "src" / "orchestrator_client"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=PACKAGE, check=True, capture_output=True,
    )  # fmt: skip
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    ours = {str(path.relative_to(SOURCE.parent)) for path in SOURCE.rglob("*.py")}

    assert {name for name in names if ".dist-info/" not in name} == {*ours, "orchestrator_client/py.typed"}


def test_it_needs_httpx_and_nothing_else(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    metadata = next(name for name in archive.namelist() if name.endswith("METADATA"))
    told = email.message_from_bytes(archive.read(metadata))

    assert told["Name"] == "orchestrator-client"
    assert told["Requires-Python"] == ">=3.10"
    assert told.get_all("Requires-Dist") == ["httpx<1,>=0.28"]
    assert told["Version"] == _version()


def test_it_works_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    """Imported from the wheel, in a folder of its own, with nothing of this project in sight."""
    program = (
        f"import sys; sys.path.insert(0, {str(wheel)!r})\n"
        "import orchestrator_client, orchestrator_client.queue, orchestrator_client.webhooks\n"
        "assert orchestrator_client.__file__.startswith(sys.path[0])\n"
        "with orchestrator_client.Client('http://h', 't') as client: print(len(list(client.operations())))\n"
        "assert not {'django', 'tenants', 'activities', 'httpx2'} & set(sys.modules)\n"
    )

    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 120


def test_it_imports_the_standard_library_httpx_and_itself() -> None:
    roots = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                roots |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                roots.add((node.module or "").partition(".")[0])

    assert roots - set(sys.stdlib_module_names) == {"httpx", "orchestrator_client"}


def test_modules_say_what_they_promise() -> None:
    for path in SOURCE.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


def _version() -> str:
    from orchestrator_client import __version__

    return __version__
