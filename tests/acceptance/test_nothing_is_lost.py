"""The promise: processes die, freeze and come back, Redis is wiped, PostgreSQL restarts or falls silent, and every activity ends once.

While PostgreSQL is silent nobody waits for long, and health is told all the time.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx2
import psutil
import pytest

from orchestrator import embedded
from orchestrator.processes import ProcessSpec
from orchestrator.processes.specs import WEB_THREADS
from tests.acceptance.stack import Stack, celery, eventually, invariants, running
from tests.network import Proxy, proxy_to

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

TENANTS = ("north", "east", "south")
ROLES = ("keyword-researcher", "site-auditor", "report-writer")
CAPS = {"keyword-researcher": 3, "site-auditor": 2, "report-writer": 4}
EACH = 23  # of every tenant and role: 207 in all
TEXT = "Bees live in cities. They fly far to find flowers. A roof is a good place for a hive. " * 5
SETTLED = {"done", "failed", "needs_review", "cancelled"}

BUSY = 0.7  # seconds more, of a machine that runs other tests; without threads of their own it is four
READERS = 24  # three times the threads of web
SILENT_SECONDS = (
    18.0  # longer than PostgreSQL bears silence inside a transaction, shorter than a worker's lease
)
QUICK = 150  # activities under way when the network falls silent
# As in production, and not as short as where workers are killed by the dozen.
LONG_TIMES = {
    "ORCHESTRATOR_HEARTBEAT_SECONDS": "5",
    "ORCHESTRATOR_LOST_AFTER_SECONDS": "45",
    "ORCHESTRATOR_WATCHDOG_SECONDS": "40",
}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running(workers=0, beats=0) as started:
        yield started


@pytest.fixture(scope="module")
def proxy(stack: Stack) -> Iterator[Proxy]:
    server = urlsplit(stack.environment["DATABASE_URL"])
    with proxy_to(server.hostname or "127.0.0.1", server.port or 5432) as between:
        yield between


@pytest.fixture(scope="module")
def client(stack: Stack, proxy: Proxy) -> Iterator[httpx2.Client]:
    """A tenant's, with one worker that reaches PostgreSQL through the proxy."""
    database = urlsplit(stack.environment["DATABASE_URL"])
    behind = database._replace(netloc=database.netloc.replace(f":{database.port}", f":{proxy.port}"))
    stack.supervisor.start(
        ProcessSpec(
            "worker",
            celery("worker", "--pool=threads", "-c", "6", "-n", "worker@test"),
            stack._as("worker") | LONG_TIMES | {"DATABASE_URL": behind.geturl()},
            stop_seconds=10,
        )
    )
    stack.manage("create_tenant", "west")
    with stack.client("west") as made:
        body = {
            "adapter": "http",
            "endpoint": f"{stack.agents}/{ROLES[0]}",
            "retry": {"max_attempts": 1},
            "max_concurrency": CAPS[ROLES[0]],
        }
        made.put(f"/agent-configs/{ROLES[0]}/", json=body).raise_for_status()
        yield made


@dataclass
class Asked:
    """How one address answered: status codes and seconds."""

    answers: list[tuple[int, float, str]] = field(default_factory=list)

    def ask(self, address: str, ended: threading.Event, pause: float, headers: dict[str, str]) -> None:
        with httpx2.Client(timeout=60, trust_env=False, headers=headers) as asking:
            while not ended.is_set():
                began = time.monotonic()
                answer = asking.get(address)
                told = answer.headers.get("Retry-After", "")
                self.answers.append((answer.status_code, time.monotonic() - began, told))
                ended.wait(pause)

    @property
    def slowest(self) -> float:
        return max(seconds for _, seconds, _ in self.answers)


@contextmanager
def frozen(stack: Stack) -> Iterator[None]:
    """PostgreSQL with all its processes, as a machine that is swapping, or a volume that hangs."""
    pid = next(server.pid for server in embedded.status(stack.home) if server.name == "postgres")
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


def test_web_tells_its_health_and_refuses_in_time_while_postgresql_is_frozen(
    stack: Stack, client: httpx2.Client
) -> None:
    ended, headers = threading.Event(), dict(client.headers)
    health, ready, api = Asked(), Asked(), [Asked() for _ in range(READERS)]
    with ThreadPoolExecutor(READERS + 2) as pool:
        for each in api:
            pool.submit(each.ask, f"{stack.web}/api/v1/activities/", ended, 0.25, headers)
        eventually(lambda: all(len(each.answers) > 2 for each in api), 60)  # every thread has its connections
        warm = [len(each.answers) for each in api]
        with frozen(stack):
            pool.submit(health.ask, f"{stack.web}/healthz", ended, 0.2, {})
            pool.submit(ready.ask, f"{stack.web}/readyz", ended, 0.2, {})
            ended.wait(12.0)
        eventually(lambda: client.get("/activities/").status_code == 200, 15)
        ended.set()

    during = [answer for each, first in zip(api, warm, strict=True) for answer in each.answers[first:]]
    refused = [answer for answer in during if answer[0] != 200]
    assert {status for status, _, _ in health.answers} == {200}
    assert 503 in {status for status, _, _ in ready.answers}
    assert health.slowest < 1.0 + BUSY
    assert ready.slowest < 1.0 + BUSY
    assert len(refused) > READERS
    told = {(status, bool(retry_after)) for status, _, retry_after in refused}
    # So many requests of one tenant may wait in a process; those that come then are refused at once.
    assert (503, True) in told
    assert told <= {(503, True), (429, True)}
    assert max(seconds for _, seconds, _ in during) < 10.0


def _behind(stack: Stack, name: str) -> list[psutil.Process]:
    """The processes of PostgreSQL that serve connections of this process of ours and of its children."""
    server = next(server for server in embedded.status(stack.home) if server.name == "postgres")
    ours = psutil.Process(stack.supervisor.pid(name))
    ports = {
        connection.laddr.port
        for one in (ours, *ours.children(recursive=True))
        for connection in one.net_connections("tcp")
        if connection.raddr
    }
    serving = psutil.Process(server.pid).children()
    return [one for one in serving if any(f"({port})" in _told_by(one) for port in ports)]


def _told_by(process: psutil.Process) -> str:
    """What it says it is; nothing when it has ended meanwhile."""
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def test_processes_of_postgresql_that_hang_alone_keep_no_request_waiting_for_longer_than_ten_seconds(
    stack: Stack, client: httpx2.Client
) -> None:
    ended, api = threading.Event(), [Asked() for _ in range(WEB_THREADS)]
    with ThreadPoolExecutor(WEB_THREADS) as pool:
        for each in api:
            pool.submit(each.ask, f"{stack.web}/api/v1/activities/", ended, 0.05, dict(client.headers))
        eventually(lambda: all(len(each.answers) > 2 for each in api), 60)
        hanging = _behind(stack, "web")
        assert hanging
        for process in hanging:
            process.suspend()
        try:
            hung = [len(each.answers) for each in api]
            eventually(
                lambda: all(len(each.answers) > count + 2 for each, count in zip(api, hung, strict=True)), 120
            )
        finally:
            ended.set()
            for process in hanging:
                process.resume()

    during = [answer for each, first in zip(api, hung, strict=True) for answer in each.answers[first:]]
    refused = {(status, bool(retry_after)) for status, _, retry_after in during if status != 200}
    # Who had a hanging one is refused, or answered over another connection: both after the same wait.
    assert max(seconds for _, seconds, _ in during) > 1.0, "somebody had a hanging one"
    assert refused <= {(503, True)}
    # What a busy machine adds is measured, too: how long the same requests took while nothing hung.
    before = max(
        seconds for each, first in zip(api, hung, strict=True) for _, seconds, _ in each.answers[:first]
    )
    assert max(seconds for _, seconds, _ in during) < 10.0 + BUSY + 3 * before


def test_work_goes_on_after_a_worker_was_cut_off_from_postgresql_for_a_while(
    stack: Stack, client: httpx2.Client, proxy: Proxy
) -> None:
    items = [
        {"name": f"quick {number}", "agent_role": ROLES[0], "input": {"content": TEXT}}
        for number in range(QUICK)
    ]
    answer = client.post("/activities/", json=items)
    answer.raise_for_status()
    eventually(
        lambda: _statuses({"": client}).get("done", 0) > QUICK // 10, 60, lambda: str(_statuses({"": client}))
    )

    proxy.fall_silent()
    time.sleep(SILENT_SECONDS)
    proxy.go_on()

    eventually(
        lambda: _statuses({"": client}).get("done", 0) >= QUICK, 60, lambda: str(_statuses({"": client}))
    )
    assert _statuses({"": client}) == {"done": QUICK}
    assert stack.supervisor.is_running("worker"), "its lease was longer than the silence"
    status, found = invariants(stack)
    assert status == 0, found


@pytest.fixture
def fleet(stack: Stack, client: httpx2.Client) -> None:
    """Three workers and two beats, in place of the worker that has the times of production."""
    stack.supervisor.stop("worker")
    for number in range(3):
        stack.start_worker(f"worker-{number}")
    for number in range(2):
        stack.start_beat(f"beat-{number}")


def test_two_hundred_activities_survive_everything(stack: Stack, fleet: None) -> None:
    clients = {slug: _tenant(stack, slug) for slug in TENANTS}
    ids = {slug: _submit(client) for slug, client in clients.items()}

    _torment(stack, random.Random(20261121))

    eventually(lambda: _unsettled(clients) == 0, 120, lambda: str(_statuses(clients)))
    assert _statuses(clients) == {"done": len(TENANTS) * len(ROLES) * EACH}
    for slug, client in clients.items():
        _each_has_one_accepted_result(client, ids[slug])
    _caps_were_kept(stack)
    status, found = invariants(stack)
    assert status == 0, found
    assert stack.refused_by_redis() == []
    for client in clients.values():
        client.close()


def _tenant(stack: Stack, slug: str) -> httpx2.Client:
    stack.manage("create_tenant", slug)
    client = stack.client(slug)
    for role, cap in CAPS.items():
        body = {
            "adapter": "http",
            "endpoint": f"{stack.agents}/{role}",
            "max_concurrency": cap,
            "retry": {"base_seconds": 0.5, "max_attempts": 10},
        }
        client.put(f"/agent-configs/{role}/", json=body).raise_for_status()
    return client


def _submit(client: httpx2.Client) -> list[str]:
    items = [
        {
            "name": f"{role} {number}",
            "agent_role": role,
            "input": {"content": TEXT},
            "params": {"delay_ms": 150},
        }
        for role in ROLES
        for number in range(EACH)
    ]
    answer = client.post("/activities/", json=items)
    answer.raise_for_status()
    return [item["id"] for item in answer.json()["results"]]


def _torment(stack: Stack, dice: random.Random) -> None:
    """About fifteen seconds of faults, each in the middle of the work."""
    supervisor = stack.supervisor
    for number in range(6):
        time.sleep(dice.uniform(0.5, 1.2))
        victim = f"worker-{dice.randrange(3)}"
        if number == 1:
            _wipe_redis(stack)
        elif number == 2:
            supervisor.kill(victim, signal.SIGSTOP)
            time.sleep(4.0)  # longer than it takes to be declared lost
            supervisor.kill(victim, signal.SIGCONT)
        elif number == 3:
            _restart_postgres(stack)
        elif number == 4:
            supervisor.kill("beat-0")
            stack.start_beat("beat-0")
        else:
            supervisor.kill(victim)
            stack.start_worker(victim)
    time.sleep(1.0)
    for number in range(3):  # the watchdog ends a worker that was frozen with work in hand
        if not supervisor.is_running(f"worker-{number}"):
            stack.start_worker(f"worker-{number}")


def _wipe_redis(stack: Stack) -> None:
    """Kill Redis and let it come back without its data."""
    pid = next(server.pid for server in embedded.status(stack.home) if server.name == "redis")
    os.kill(pid, signal.SIGKILL)
    for leftover in stack.home.path.rglob("appendonly*"):
        if leftover.is_file():
            leftover.unlink()
    for leftover in stack.home.path.rglob("*.aof*"):
        leftover.unlink(missing_ok=True)
    embedded.start(stack.home)


def _restart_postgres(stack: Stack) -> None:
    embedded.stop(stack.home, ("postgres",))
    embedded.start(stack.home)


def _statuses(clients: dict[str, httpx2.Client]) -> dict[str, int]:
    return dict(
        Counter(
            activity["status"] for client in clients.values() for activity in _all(client, "/activities/")
        )
    )


def _unsettled(clients: dict[str, httpx2.Client]) -> int:
    try:
        return sum(count for status, count in _statuses(clients).items() if status not in SETTLED)
    except httpx2.HTTPError:
        return -1


def _all(client: httpx2.Client, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    following: str | None = f"{path}?limit=200"
    while following:
        answer = client.get(following)
        answer.raise_for_status()
        page = answer.json()
        found += page["results"]
        following = page["next"]
    return found


def _each_has_one_accepted_result(client: httpx2.Client, ids: list[str]) -> None:
    for activity_id in ids:
        runs = client.get(f"/activities/{activity_id}/runs/").json()
        completed = [run for run in runs.get("results", runs) if run["status"] == "completed"]
        assert len(completed) == 1, (activity_id, runs)
        client.get(f"/activities/{activity_id}/output/").raise_for_status()


def _caps_were_kept(stack: Stack) -> None:
    """What the agents themselves saw of each tenant and role at once."""
    roles = stack.recorder()["roles"]
    assert set(roles) >= set(ROLES)
    for role in ROLES:
        for tenant, most in roles[role]["max_running_by_tenant"].items():
            assert most <= CAPS[role], (role, tenant, most)
