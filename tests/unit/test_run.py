"""A test that fails among others and passes alone is listed as unstable; one that fails again fails the run. Processes share the files."""

from __future__ import annotations

import os
import re
from itertools import product
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
    status = run.main(["--processes", "2", "-c", str(project / "pytest.ini"), str(project), *arguments])
    before, _, named = capfd.readouterr().out.partition("\nUnstable")
    return status, before, named


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


def test_each_test_runs_once_those_of_a_file_in_one_process_and_fixtures_of_the_session_end_with_each_process(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    noted, ended = project / "noted", project / "ended"
    (project / "conftest.py").write_text(
        "import os, pytest\n"
        "@pytest.fixture(scope='session', autouse=True)\n"
        "def everywhere():\n"
        "    yield\n"
        f"    with open({str(ended)!r}, 'a') as file: file.write(f'{{os.getpid()}}\\n')\n"
    )
    for name in "abcdef":
        (project / f"test_{name}.py").write_text(
            "import os, pytest\n"
            "@pytest.mark.parametrize('number', range(30))\n"
            "def test_noted(number, capfd):\n"
            "    print(number); assert capfd.readouterr().out == f'{number}\\n'\n"
            f"    with open({str(noted)!r}, 'a') as file: file.write(f'{name} {{number}} {{os.getpid()}}\\n')\n"
        )

    status, before, _ = outcome(project, capfd)

    ran = [line.split() for line in noted.read_text().splitlines()]
    assert (status, "181 passed" in before) == (0, True)
    assert sorted((name, int(number)) for name, number, _ in ran) == list(product("abcdef", range(30)))
    assert len({(name, process) for name, _, process in ran}) == 6
    processes = ended.read_text().splitlines()
    assert 1 <= len(processes) == len(set(processes)) <= 2


def test_failures_that_pass_alone_are_named_also_of_tests_whose_process_has_died(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    dies = "import os\ndef test_dies(): 'PYTEST_XDIST_WORKER' in os.environ and os._exit(0)\n"
    (project / "test_dies.py").write_text(f"def test_before(): pass\n{dies}def test_after(): pass\n")
    (project / "test_two.py").write_text(UNSTABLE)

    status, before, named = outcome(project, capfd)

    assert (status, "3 failed, 2 passed" in before) == (0, True)
    assert re.findall(r"::(\w+)", named) == ["test_after", "test_dies", "test_unstable"]


def test_a_process_that_fails_between_tests_fails_the_run_and_says_why(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / "conftest.py").write_text("def pytest_process_forked(name): 1 / (name != 'gw0')\n")
    (project / "test_two.py").write_text("def test_two(): pass\n")

    status = run.main(["--processes", "1", "-x", "-c", str(project / "pytest.ini"), str(project)])

    assert status == run.FAILED
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_processes_do_not_mix_what_tests_print(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One test prints before and another after one of the other process, and each ends later than what it waits for."""
    first, second = project / "first", project / "second"
    for fifo in (first, second):
        os.mkfifo(fifo)
    (project / "test_a.py").write_text(
        "def test_a():\n"
        f"    print('from a'); open({str(first)!r}, 'w').close(); open({str(second)!r}).close(); assert False\n"
    )
    (project / "test_b.py").write_text(
        f"def test_b(): open({str(first)!r}).close(); print('from b')\n"
        f"def test_c(): open({str(second)!r}, 'w').close()\n"
    )

    _, before, _ = outcome(project, capfd, "-x")

    assert "Captured stdout call -----------------------------\nfrom a\n" in before
    assert "from b" not in before
