"""`make up` where it cannot work: it says why and what to do, before it changes anything."""

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
from orchestrator.embedded.identity import ProcessIdentity
from orchestrator.embedded.server import is_free
from orchestrator.local import LocalStack
from orchestrator.processes import Supervisor
from orchestrator.processes.supervisor import SupervisorError, require_free
from orchestrator.settings import services
from tests import quick_python, servers
from tests.architecture import tree
from tests.network import free_port

pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture
def home(settings: Any, tmp_path: Path) -> ServiceHome:
    settings.ORCHESTRATOR_HOME, settings.PORT, settings.FLOWER_PORT = tmp_path, 0, 0
    return ServiceHome(tmp_path)


@pytest.fixture(autouse=True)
def signals_of_the_tests() -> Iterator[None]:
    """Gives Ctrl-C back to pytest, because the command installs handlers of its own."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def refusal_of_up() -> tuple[str, str]:
    """The error text of the refused command, and its output until then."""
    output = StringIO()
    with pytest.raises(CommandError) as refusal:
        call_command("up", stdout=output)
    return str(refusal.value), output.getvalue()


def test_taken_ports_are_named_together_with_free_ones(home: ServiceHome, settings: Any) -> None:
    """Otherwise the other program would be mistaken for ours as soon as it is ready."""
    with socket.create_server(("127.0.0.1", 0)) as web, socket.create_server(("127.0.0.1", 0)) as flower:
        settings.PORT, settings.FLOWER_PORT = web.getsockname()[1], flower.getsockname()[1]
        error, output = refusal_of_up()

    assert f"Another program listens on ports {settings.PORT} and {settings.FLOWER_PORT}" in error
    proposed = dict(word.split("=") for word in error.split() if "=" in word)
    assert proposed.keys() == {"PORT", "FLOWER_PORT"}
    assert all(is_free(int(port)) for port in proposed.values())
    assert output == ""


def test_only_the_taken_port_is_named(home: ServiceHome, settings: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as flower:
        settings.FLOWER_PORT = flower.getsockname()[1]
        error, _ = refusal_of_up()

    assert " FLOWER_PORT=" in error
    assert " PORT=" not in error


def test_one_port_for_both_is_refused_with_a_free_one() -> None:
    port = free_port()

    with pytest.raises(SupervisorError) as refusal:
        require_free({"PORT": port, "FLOWER_PORT": port})

    reason, _, other = str(refusal.value).partition(" FLOWER_PORT=")
    assert reason == f"PORT and FLOWER_PORT are both {port}. Choose another port:"
    assert is_free(int(other.removesuffix(" make up")))


def test_a_second_supervisor_says_that_the_first_runs(home: ServiceHome) -> None:
    with Supervisor(home) as first:
        first.take_over()

        error, output = refusal_of_up()

    assert "already run under another supervisor. End that one (Ctrl-C)" in error
    assert output == ""


def test_processes_started_by_hand_use_the_ports_of_make_up_while_it_runs(
    home: ServiceHome, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker tells agents where to report, and what they must not be: our own ports."""
    monkeypatch.delenv("PORT", raising=False)
    monkeypatch.delenv("FLOWER_PORT", raising=False)
    settings.PORT, settings.FLOWER_PORT = free_port(), free_port()
    seen: list[tuple[int, int]] = []

    def look(stack: LocalStack) -> str:
        seen.append(services.ports(home))
        raise SupervisorError("That is enough.")

    monkeypatch.setattr(LocalStack, "_prepare", look)
    refusal_of_up()
    monkeypatch.setattr(ProcessIdentity, "is_alive", lambda identity: False)

    assert seen == [(settings.PORT, settings.FLOWER_PORT)]
    assert services.ports(home) == (8000, 5555)


def run_without_servers(home: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return quick_python.run(
        [sys.executable, "manage.py", *command],
        cwd=tree.ROOT,
        env={"ORCHESTRATOR_HOME": str(home), "PATH": "", **servers.COMPILED},
    )


def test_a_command_explains_its_options_without_servers(tmp_path: Path) -> None:
    done = run_without_servers(tmp_path, "create_token", "--help")

    assert (done.returncode, done.stderr) == (0, "")
    assert "--tenant" in done.stdout


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_settings_need_no_servers_for_the_options_of_a_command(
    option: str, home: ServiceHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "HOME", home.path)
    monkeypatch.setattr(sys, "argv", ["manage.py", "create_token", option])
    for name in ("DATABASE_URL", "REDIS_URL", "MONGODB_URI"):
        monkeypatch.delenv(name)

    assert services.endpoints() == services.UNREACHABLE


def test_a_command_without_servers_prints_only_how_to_start_them(tmp_path: Path) -> None:
    """The first mistake of newcomers: a second terminal before `make up`."""
    done = run_without_servers(tmp_path, "queues")

    assert (done.returncode, done.stdout) == (1, "")
    (error,) = done.stderr.splitlines()
    assert error.startswith("No servers:")
    assert "Start them with `make up`" in error


def test_a_home_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    done = run_without_servers(tmp_path / "file" / "home", "up")

    assert (done.returncode, done.stdout) == (1, "")
    (error,) = done.stderr.splitlines()
    assert error == (
        f"The folder {tmp_path}/file/home cannot be used: Not a directory. Choose another one with ORCHESTRATOR_HOME."
    )
