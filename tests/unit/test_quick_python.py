"""A program that forks from a process with the project behaves as if it had loaded the project itself."""

from __future__ import annotations

import sys

import pytest
from django.conf import settings

from tests import quick_python, servers

#: `{}` may change a setting that a module reads while it is imported.
PROGRAM = """
from orchestrator.settings import test
{}
import django
django.setup()
from django.conf import settings
from activities.schemas import ApprovalRequestSerializer
print(settings.PORT, ApprovalRequestSerializer().fields["activity_ids"].max_length)
"""


@pytest.mark.parametrize(
    ("change", "limit"),
    [("", settings.ORCHESTRATOR_LINKS_PER_APPROVAL), ("test.ORCHESTRATOR_LINKS_PER_APPROVAL = 7", 7)],
    ids=["as loaded", "another value"],
)
def test_modules_are_imported_with_the_settings_of_the_program(change: str, limit: int) -> None:
    program = [sys.executable, "-c", PROGRAM.format(change)]

    ended = quick_python.run(program, env={**servers.environment(settings), "PORT": "8123"})

    assert ended.stdout == f"8123 {limit}\n", ended.stderr


@pytest.mark.parametrize(
    ("program", "status", "errors"),
    [
        ("print('a', end='')", 0, ""),
        ("import atexit; atexit.register(print, 'a', end='')", 0, ""),
        ("import sys; print('a', end=''); sys.exit('no')", 1, "no\n"),
        ("import sys; print('a', end=''); sys.exit(3)", 3, ""),
    ],
)
def test_a_program_ends_as_in_python(program: str, status: int, errors: str) -> None:
    ended = quick_python.run([sys.executable, "-c", program])

    assert (ended.returncode, ended.stdout, ended.stderr) == (status, "a", errors)
