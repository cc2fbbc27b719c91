"""`make up` where it cannot be: it says why, and what to do, before it touches anything."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from orchestrator.embedded import ServiceHome
from orchestrator.embedded.server import is_free
from orchestrator.processes import Supervisor
from tests.architecture import tree

pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture
def home(settings: Any, tmp_path: Path) -> ServiceHome:
    settings.ORCHESTRATOR_HOME, settings.PORT, settings.FLOWER_PORT = tmp_path, 0, 0
    return ServiceHome(tmp_path)


@pytest.fixture(autouse=True)
def signals_of_the_tests() -> Iterator[None]:
    """The command listens for Ctrl-C, which is for pytest again afterwards."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def refused() -> tuple[str, str]:
    """What it was refused with, and what it had told until then."""
    told = StringIO()
    with pytest.raises(CommandError) as refusal:
        call_command("up", stdout=told)
    return str(refusal.value), told.getvalue()


def test_ports_that_something_else_has_are_named_with_free_ones_to_choose(
    home: ServiceHome, settings: Any
) -> None:
    """Else the other program would be taken for ours as soon as it says that it is ready."""
    with socket.create_server(("127.0.0.1", 0)) as web, socket.create_server(("127.0.0.1", 0)) as flower:
        settings.PORT, settings.FLOWER_PORT = web.getsockname()[1], flower.getsockname()[1]
        said, told = refused()

    assert f"Another program listens on ports {settings.PORT} and {settings.FLOWER_PORT}" in said
    chosen = dict(word.split("=") for word in said.split() if "=" in word)
    assert chosen.keys() == {"PORT", "FLOWER_PORT"}
    assert all(is_free(int(port)) for port in chosen.values())
    assert told == ""


def test_only_the_port_that_is_taken_is_spoken_of(home: ServiceHome, settings: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as flower:
        settings.FLOWER_PORT = flower.getsockname()[1]
        said, _ = refused()

    assert " FLOWER_PORT=" in said
    assert " PORT=" not in said


def test_a_second_one_says_that_the_first_runs(home: ServiceHome) -> None:
    with Supervisor(home) as first:
        first.take_over()

        said, told = refused()

    assert "already run under another supervisor. End that one (Ctrl-C)" in said
    assert told == ""


def test_a_command_without_any_server_says_how_to_start_them_and_nothing_else(tmp_path: Path) -> None:
    """The first mistake of newcomers: a second terminal before `make up`."""
    done = subprocess.run(
        [sys.executable, "manage.py", "queues"],
        cwd=tree.ROOT,
        env={"ORCHESTRATOR_HOME": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (1, "")
    (said,) = done.stderr.splitlines()
    assert said.startswith("No servers:")
    assert "Start them with `make up`" in said
