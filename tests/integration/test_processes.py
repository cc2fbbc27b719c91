"""The supervisor of our Python processes, with real child processes and without any server."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from gunicorn.config import Config

from orchestrator.embedded import ServiceHome
from orchestrator.embedded.identity import wait_until
from orchestrator.processes import ProcessSpec, Supervisor, SupervisorError, standard_processes
from tests.network import free_port

SLEEP = "import time; print('up'); time.sleep(60)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"
FAMILY = (
    "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    "print('up', child.pid); time.sleep(60)"
)
FAILING = "import sys; print('no such table: tenants'); sys.exit(3)"


@pytest.fixture
def home(tmp_path: Path) -> ServiceHome:
    return ServiceHome(tmp_path)


@pytest.fixture
def supervisor(home: ServiceHome) -> Iterator[Supervisor]:
    with Supervisor(home) as supervisor:
        yield supervisor


def python(name: str, code: str, *, stop_seconds: float = 10.0) -> ProcessSpec:
    return ProcessSpec(name, (sys.executable, "-c", code), stop_seconds=stop_seconds)


def start(supervisor: Supervisor, spec: ProcessSpec) -> int:
    supervisor.start(spec)
    log = supervisor.home.log(spec.name)
    assert wait_until(lambda: "up" in log.read_text(), 10)
    return supervisor.pid(spec.name)


def test_processes_stop_in_reverse_order_of_their_start(home: ServiceHome, tmp_path: Path) -> None:
    order = tmp_path / "order"
    code = (
        "import signal, sys, time\n"
        "def end(*_):\n    open({path!r}, 'a').write({name!r}); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end); print('up'); time.sleep(60)"
    )

    with Supervisor(home) as supervisor:
        for name in "abc":
            start(supervisor, python(name, code.format(path=str(order), name=name)))

    assert order.read_text() == "cba"


def test_a_process_that_ignores_sigterm_is_killed_and_children_are_ended(supervisor: Supervisor) -> None:
    stubborn = start(supervisor, python("stubborn", STUBBORN, stop_seconds=0.2))
    parent = start(supervisor, python("family", FAMILY))
    child = int(supervisor.home.log("family").read_text().split()[1])

    supervisor.stop("stubborn")
    supervisor.stop("family")
    supervisor.stop("family")

    # A child that lost its parent is reaped by the system, in the system's time.
    assert wait_until(lambda: not any(alive(pid) for pid in (stubborn, parent, child)), 10)
    assert supervisor.list_ended() == []


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_process_that_ended_is_reported_with_its_output(supervisor: Supervisor) -> None:
    supervisor.start(python("web", FAILING))

    assert wait_until(lambda: bool(supervisor.list_ended()), 10)
    (ended,) = supervisor.list_ended()

    assert (ended.name, ended.exit_code) == ("web", 3)
    with pytest.raises(SupervisorError, match=r"web ended with exit code 3.*\n.*no such table: tenants"):
        supervisor.check()


def test_only_the_output_of_the_latest_launch_is_quoted(supervisor: Supervisor) -> None:
    supervisor.start(python("web", "print('first')"))
    assert wait_until(lambda: not supervisor.is_running("web"), 10)

    supervisor.start(python("web", "print('second')"))
    assert wait_until(lambda: not supervisor.is_running("web"), 10)

    assert supervisor.list_ended()[0].output == "second"
    assert supervisor.home.log("web").read_text() == "first\nsecond\n"


def test_a_killed_process_is_not_reported_and_can_be_started_again(supervisor: Supervisor) -> None:
    first = start(supervisor, python("worker", SLEEP))

    supervisor.kill("worker")
    assert not supervisor.is_running("worker")
    assert supervisor.list_ended() == []
    supervisor.restart("worker")

    assert supervisor.is_running("worker")
    assert supervisor.pid("worker") != first


def test_a_frozen_process_is_stopped(supervisor: Supervisor) -> None:
    start(supervisor, python("worker", SLEEP))
    supervisor.kill("worker", signal.SIGSTOP)

    assert supervisor.is_running("worker")
    supervisor.stop("worker")

    assert not supervisor.is_running("worker")


def test_waiting_ends_when_the_address_answers_with_success(supervisor: Supervisor) -> None:
    port = free_port()
    supervisor.start(
        ProcessSpec("web", (sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)))
    )

    supervisor.wait_until_ready(f"http://127.0.0.1:{port}/", seconds=20)

    with pytest.raises(SupervisorError, match="last answer: 404"):
        supervisor.wait_until_ready(f"http://127.0.0.1:{port}/missing", seconds=0.2)


def test_waiting_gives_up_at_once_when_a_process_ended(supervisor: Supervisor) -> None:
    supervisor.start(python("web", FAILING))

    with pytest.raises(SupervisorError, match="exit code 3"):
        supervisor.wait_until_ready(f"http://127.0.0.1:{free_port()}/", seconds=30)


def test_a_second_supervisor_of_the_same_home_is_refused(supervisor: Supervisor) -> None:
    start(supervisor, python("web", SLEEP))

    with (
        Supervisor(supervisor.home) as second,
        pytest.raises(SupervisorError, match="already run under another"),
    ):
        second.start(python("beat", SLEEP))

    assert supervisor.is_running("web")


def test_processes_of_a_killed_supervisor_are_ended_by_the_next(home: ServiceHome) -> None:
    code = (
        "import sys, time\nfrom orchestrator.embedded import ServiceHome\n"
        "from orchestrator.processes import ProcessSpec, Supervisor\n"
        f"supervisor = Supervisor(ServiceHome({str(home.path)!r}))\n"
        f"supervisor.start(ProcessSpec('worker', (sys.executable, '-c', {SLEEP!r})))\n"
        "print(supervisor.pid('worker'), flush=True); time.sleep(60)"
    )
    with subprocess.Popen((sys.executable, "-c", code), stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        orphan = int(killed.stdout.readline())
        killed.kill()
    assert psutil.pid_exists(orphan)

    with Supervisor(home) as supervisor:
        start(supervisor, python("worker", SLEEP))

        assert wait_until(lambda: not alive(orphan), 10)


def test_an_unknown_process_and_a_second_start_are_refused_with_the_reason(supervisor: Supervisor) -> None:
    start(supervisor, python("web", SLEEP))

    with pytest.raises(SupervisorError, match=r"no process 'wbe'\. Choose among: web"):
        supervisor.stop("wbe")
    with pytest.raises(SupervisorError, match="is already running with pid"):
        supervisor.start(python("web", SLEEP))


def test_processes_get_the_home_and_their_environment(home: ServiceHome) -> None:
    code = "import os; print(os.environ['ORCHESTRATOR_HOME'], os.environ['A'], os.environ['B'], 'up')"
    with Supervisor(home, environment={"A": "1", "B": "1"}) as supervisor:
        supervisor.start(ProcessSpec("web", (sys.executable, "-c", code), env={"B": "2"}))

        assert wait_until(lambda: home.log("web").read_text().endswith("up\n"), 10)

    assert home.log("web").read_text() == f"{home.path} 1 2 up\n"


def test_environment_variables_configure_the_standard_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", "3")
    monkeypatch.setenv("WEB_BIND", "0.0.0.0")
    web, worker, beat, flower = standard_processes(port=8100, flower_port=5600, concurrency=4)

    assert {"--workers=3", "--bind=0.0.0.0:8100"} <= set(web.argv)
    assert worker.argv[-2:] == ("--concurrency", "4")
    assert beat.argv[1:6] == ("-m", "celery", "-A", "orchestrator", "beat")
    assert {"--address=127.0.0.1", "--port=5600"} <= set(flower.argv)


def test_web_keeps_idle_connections_for_longer_than_proxies_usually_do() -> None:
    web = standard_processes(port=1, flower_port=2, concurrency=None)[0]

    options = Config().parser().parse_args(web.argv[web.argv.index("gunicorn") + 1 :])

    assert options.keepalive > 60
