"""Run tests, and those that failed once more: `python -m tests.run [arguments of pytest]`.

A test that failed beside others and passes alone is unstable, not broken. It is named at the end, so that it is mended, and does not
turn the whole run red. Only a run that came to its end is judged like this: one that was interrupted or told to stop at the first
failure says nothing about the tests behind it.

In a new checkout each process of pytest-xdist would compile all tests, with what makes a failed `assert` explain itself: that takes
three times as long as reading them. So they are compiled before, once.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMPILERS = 2
MANY = 20  # of so many and more it is not the luck of one test
PASSED, FAILED = 0, 1  # how pytest ends when it came to the end
STOPS_EARLY = ("-x", "--exitfirst", "--maxfail", "--stepwise", "--sw")


def main(arguments: Sequence[str]) -> int:
    if "-n" in arguments and not _is_compiled(Path(__file__).with_name("unit") / "test_run.py"):
        _compile(sorted((ROOT / "tests").rglob("test_*.py")))
    with tempfile.TemporaryDirectory(prefix="orchestrator-tests-cache-") as cache:
        status = _pytest(cache, *arguments)
        failed = _failed(cache)
        if status != FAILED or not 0 < len(failed) < MANY or _ended_early(arguments, failed):
            return status
        _say(f"\nOnce more, alone and one after the other: {len(failed)} that failed.\n")
        status = _pytest(cache, *arguments, "-n", "0", "--last-failed", "--last-failed-no-failures", "none")
        unstable = sorted(set(failed) - set(_failed(cache)))
    if unstable and status in (PASSED, FAILED):
        _say("\n  ".join(["\nUnstable, as they failed beside others and passed alone:", *unstable]))
    return status


def _is_compiled(test: Path) -> bool:
    """Whether pytest has kept what it made of the test, or would not keep it."""
    plain = Path(importlib.util.cache_from_source(str(test)))
    kept = plain.with_name(f"{test.stem}.{sys.implementation.cache_tag}-pytest-{pytest.__version__}.pyc")
    return kept.exists() or sys.dont_write_bytecode


def _compile(tests: Sequence[Path]) -> None:
    """Have the tests read by some processes, each its share, without running any. A fault in one shows when they are run."""
    reading = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider"]
    processes = [
        subprocess.Popen(
            [*reading, *map(str, tests[number::COMPILERS])],
            env={**os.environ, "ORCHESTRATOR_TEST_SERVERS": "none"}, cwd=ROOT,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for number in range(min(COMPILERS, len(tests)))
    ]  # fmt: skip
    for process in processes:
        process.wait()


def _ended_early(arguments: Sequence[str], failed: Sequence[str]) -> bool:
    """Whether tests were left out because of a failure. A file that could not be read ends everything; it stands there by its name."""
    return any(arg.startswith(STOPS_EARLY) for arg in arguments) or any("::" not in test for test in failed)


def _pytest(cache: str, *arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *arguments]).returncode


def _failed(cache: str) -> list[str]:
    """The tests whose last run failed."""
    kept = Path(cache) / "v" / "cache" / "lastfailed"
    return list(json.loads(kept.read_text(encoding="utf-8"))) if kept.exists() else []


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
