"""Runs tests, and failed ones a second time: `python -m tests.run [arguments of pytest]`.

A test that fails among others and passes alone is unstable. It is listed at the end, and does not fail the run. This holds only for
complete runs, because an interrupted one, or one that stops at the first failure, says nothing about the remaining tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
MANY = 20  # so many failures are not caused by unstable tests
PASSED, FAILED = 0, 1  # exit codes of complete runs
STOPS_EARLY = ("-x", "--exitfirst", "--maxfail", "--stepwise", "--sw")


def main(arguments: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="orchestrator-tests-cache-") as cache:
        status = _pytest(cache, *arguments)
        failed = _failed(cache)
        if status != FAILED or not 0 < len(failed) < MANY or _ended_early(arguments, failed):
            return status
        _say(f"\nRunning {len(failed)} failed tests again, one after the other.\n")
        status = _pytest(
            cache, *arguments, "--processes", "0", "--last-failed", "--last-failed-no-failures", "none"
        )
        unstable = sorted(set(failed) - set(_failed(cache)))
    if unstable and status in (PASSED, FAILED):
        _say("\n  ".join(["\nUnstable, because they failed among others and passed alone:", *unstable]))
    return status


def _ended_early(arguments: Sequence[str], failed: Sequence[str]) -> bool:
    """Return whether tests were left out because of a failure. A file that cannot be imported ends the run and is listed alone."""
    return any(arg.startswith(STOPS_EARLY) for arg in arguments) or any("::" not in test for test in failed)


def _pytest(cache: str, *arguments: str) -> int:
    command = [sys.executable, "-m", "pytest", "-p", "tests.forks", "-o", f"cache_dir={cache}", *arguments]
    return subprocess.run(command).returncode


def _failed(cache: str) -> list[str]:
    """Return the tests whose last run failed."""
    file = Path(cache) / "v" / "cache" / "lastfailed"
    return list(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else []


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
