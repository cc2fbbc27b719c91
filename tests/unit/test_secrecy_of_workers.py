"""A program that a worker runs cannot read the secrets of the worker, on real processes."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agents.command_line import users
from agents.exceptions import ConfigurationError

ROOT = Path(__file__).resolve().parents[2]
SECRET = "postgresql://somebody:hunter2-hunter2@db/x"
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")

#: Prints what a program can read of its parent: its environment and its memory.
SPY = """
import os
for number in filter(str.isdigit, os.listdir("/proc")):
    try:
        text = open(f"/proc/{number}/environ", "rb").read()
    except OSError as error:
        text = b"refused" if int(number) == os.getppid() else b""
    if int(number) == os.getppid():
        print("refused" if text == b"refused" else "read", b"hunter2" in text, b"HARMLESS=yes" in text)
try:
    open(f"/proc/{os.getppid()}/mem", "rb").read(0)
    print("opened")
except OSError:
    print("refused")
"""
WORKER = """
import os, subprocess, sys
from agents.command_line import users
{steps}
print(os.environ.get("DATABASE_URL"))
sys.stdout.flush()
subprocess.run([sys.executable, "-I", "-S", "-c", sys.argv[1]], env={{}}, check=True)
"""


def _without_capabilities() -> None:
    """Give up the capabilities of root, as a worker that is not root has none, and neither have its programs."""
    for capability in range(64):
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


def _output_of(steps: str) -> list[str]:
    return subprocess.run(
        [sys.executable, "-c", WORKER.format(steps=steps), SPY],
        cwd=ROOT, env={"PATH": os.environ["PATH"], "DATABASE_URL": SECRET, "HARMLESS": "yes"},
        preexec_fn=_without_capabilities, capture_output=True, text=True, check=True, timeout=60,
    ).stdout.split("\n")  # fmt: skip


@linux
def test_a_program_cannot_read_its_worker() -> None:
    assert _output_of("users.forbid_inspection()")[1:3] == ["refused False False", "refused"]


@linux
def test_a_program_could_read_a_worker_without_this_protection() -> None:
    """Otherwise the test above would prove nothing."""
    assert _output_of("pass")[1:3] == ["read True True", "opened"]


@linux
def test_forgotten_variables_are_nowhere_in_the_environment_and_the_rest_is_unchanged() -> None:
    assert _output_of("users.wipe_secrets()")[:2] == ["None", "read False True"]


def test_a_program_runs_as_the_user_of_the_worker_only_when_a_setting_says_so(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users, "forbid_inspection", lambda: None)
    monkeypatch.setattr(users, "may_switch", lambda: False)
    settings.ORCHESTRATOR_CLI_SHARED_USER = False
    with pytest.raises(ConfigurationError, match="ORCHESTRATOR_CLI_SHARED_USER"):
        users.needs_own_user()
    settings.ORCHESTRATOR_CLI_SHARED_USER = True
    assert not users.needs_own_user()


#: A worker that checks whether it may run a program, after it has given something up.
CHECK = """
import ctypes, os
from django.conf import settings
settings.configure(ORCHESTRATOR_CLI_SHARED_USER=False)
from agents.command_line import users
from agents.exceptions import ConfigurationError
{given_up}
try:
    print(users.needs_own_user())
except ConfigurationError as refusal:
    print(refusal.error_code)
"""


@linux
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give something up")
@pytest.mark.parametrize(
    ("given_up", "answer"),
    [
        ("pass", "True"),
        ("os.setresuid(65534, 65534, 65534)", "shared_user"),
        # Root in a container that took all capabilities away.
        (
            "ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())",
            "shared_user",
        ),
    ],
    ids=["root", "nobody", "root without capabilities"],
)
def test_a_worker_that_cannot_switch_runs_no_programs(given_up: str, answer: str) -> None:
    process = subprocess.run(
        [sys.executable, "-c", CHECK.format(given_up=given_up)],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip

    assert process.stdout.split() == [answer]


@pytest.mark.parametrize(
    ("commands", "calls"),
    [((), []), (("claude",), ["forbid_inspection", "wipe_secrets"])],
    ids=["none", "some"],
)
def test_a_worker_that_runs_programs_keeps_its_secrets_from_the_first_moment(
    commands: tuple[str, ...], calls: list[str], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    monkeypatch.setattr(users, "forbid_inspection", lambda: called.append("forbid_inspection"))
    monkeypatch.setattr(users, "wipe_secrets", lambda: called.append("wipe_secrets"))
    settings.ORCHESTRATOR_CLI_COMMANDS = commands

    users.begin_worker()

    assert called == calls
