"""A test that fails among others and passes alone is listed as unstable; one that fails again fails the run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import run

pytestmark = pytest.mark.long  # each starts pytest several times

UNSTABLE = "import os\ndef test_unstable(): assert 'PYTEST_XDIST_WORKER' not in os.environ\n"
BROKEN = "def test_broken(): assert False\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_fine.py").write_text("def test_fine(): pass\n")
    return tmp_path


def outcome(project: Path, capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return the exit status, the output before the unstable tests, and their names."""
    status = run.main(["-p", "xdist", "-n", "1", "-c", str(project / "pytest.ini"), str(project), *arguments])
    before, _, named = capfd.readouterr().out.partition("\nUnstable")
    return status, before, named


def test_a_test_that_fails_beside_others_and_passes_alone_is_named(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / "test_two.py").write_text(UNSTABLE)

    status, before, named = outcome(project, capfd)

    assert status == 0
    assert "1 failed, 1 passed" in before
    assert "test_two.py::test_unstable" in named


def test_a_test_that_fails_again_fails_the_run(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (project / "test_two.py").write_text(UNSTABLE + BROKEN)

    status, before, named = outcome(project, capfd)

    assert status == 1
    assert "1 failed, 1 passed" in before  # the second time
    assert "test_unstable" in named
    assert "test_broken" not in named


def test_a_failure_is_not_forgiven_in_a_run_that_stops_at_the_first_failure(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / "test_two.py").write_text(UNSTABLE)

    status, before, named = outcome(project, capfd, "--maxfail=1")

    assert status != 0
    assert "failed tests again" not in before
    assert named == ""


def test_a_file_that_cannot_be_collected_is_not_retried(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / "test_two.py").write_text(f"import nothing_of_this_name\n{UNSTABLE}")

    status, before, _ = outcome(project, capfd)

    assert status != 0
    assert "failed tests again" not in before


def test_many_failures_are_not_retried(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cases = f"import pytest\n@pytest.mark.parametrize('number', range({run.MANY}))\n"
    (project / "test_two.py").write_text(f"{cases}def test_broken(number): assert False\n")

    status, before, _ = outcome(project, capfd)

    assert status == 1
    assert "failed tests again" not in before


def test_tests_of_a_new_checkout_are_compiled_before_test_processes_start(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    test = project / "test_fine.py"
    before = run._is_compiled(test)

    run._compile([test])

    assert (before, run._is_compiled(test)) == (False, True)
