"""PostgreSQL stops answering real processes: no request waits for long, health checks keep answering, and no work fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from urllib.parse import urlsplit

import httpx2
import psutil
import pytest

from orchestrator import embedded
from orchestrator.processes import ProcessSpec
from tests.acceptance.stack import Stack, celery, eventually, invariants, running
from tests.network import Proxy, proxy_to

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

SOON_SECONDS = 1.7  # most health checks answer within it; without threads of their own most would take four
# Web gives up after less than 10 s, all others after 31.5. The margin is for a machine that runs other tests.
GIVEN_UP_SECONDS = 25.0
READERS = 24  # three times the threads of web
SILENT_SECONDS = 18.0  # longer than PostgreSQL tolerates an idle transaction, shorter than a worker's lease
QUICK = 150  # open activities when the network falls silent
# As in production, and not as short as for tests that kill many workers.
LONG_TIMES = {
    "ORCHESTRATOR_HEARTBEAT_SECONDS": "5",
    "ORCHESTRATOR_LOST_AFTER_SECONDS": "45",
    "ORCHESTRATOR_WATCHDOG_SECONDS": "40",
    "ORCHESTRATOR_TICK_SECONDS": "1",
}
ROLE = "keyword-researcher"
TEXT = "Bees live in cities. They fly far to find flowers. " * 5


@pytest.fixture(scope="module")
def stack(django_db_setup: None) -> Iterator[Stack]:
    with running(workers=0, beats=0) as started:
        yield started


@pytest.fixture(scope="module")
def proxy(stack: Stack) -> Iterator[Proxy]:
    server = urlsplit(stack.environment["DATABASE_URL"])
    with proxy_to(server.hostname or "127.0.0.1", server.port or 5432) as between:
        yield between


@pytest.fixture(scope="module")
def client(stack: Stack, proxy: Proxy) -> Iterator[httpx2.Client]:
    """The client of a tenant, with one worker that reaches PostgreSQL through the proxy."""
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
    stack.manage("create_tenant", "north")
    with stack.client("north") as made:
        body = {"adapter": "http", "endpoint": f"{stack.agents}/{ROLE}", "retry": {"max_attempts": 1}}
        made.put(f"/agent-configs/{ROLE}/", json=body).raise_for_status()
        yield made
    stack.supervisor.stop("worker")  # before the proxy, because the worker ends its lease in PostgreSQL


@dataclass
class Poller:
    """Polls one address and records status codes, seconds and Retry-After."""

    answers: list[tuple[int, float, str]] = field(default_factory=list)

    def poll(self, address: str, ended: threading.Event, pause: float, headers: dict[str, str]) -> None:
        with httpx2.Client(timeout=60, trust_env=False, headers=headers) as asking:
            while not ended.is_set():
                began = time.monotonic()
                answer = asking.get(address)
                retry_after = answer.headers.get("Retry-After", "")
                self.answers.append((answer.status_code, time.monotonic() - began, retry_after))
                ended.wait(pause)

    @property
    def usual(self) -> float:
        """The median of the seconds, because on a busy machine a single answer may take any time."""
        return median(seconds for _, seconds, _ in self.answers)


@contextmanager
def frozen(stack: Stack) -> Iterator[None]:
    """Freeze all processes of PostgreSQL, as on a machine that is swapping or whose volume hangs."""
    pid = next(server.pid for server in embedded.status(stack.home) if server.name == "postgres")
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


def test_web_reports_its_health_and_refuses_requests_in_time_while_postgresql_is_frozen(
    stack: Stack, client: httpx2.Client
) -> None:
    ended, headers = threading.Event(), dict(client.headers)
    health, ready, api = Poller(), Poller(), [Poller() for _ in range(READERS)]
    with ThreadPoolExecutor(READERS + 2) as pool:
        for each in api:
            pool.submit(each.poll, f"{stack.web}/api/v1/activities/", ended, 0.5, headers)
        eventually(lambda: all(len(each.answers) > 2 for each in api), 60)  # every thread has its connections
        warm = [len(each.answers) for each in api]
        with frozen(stack):
            pool.submit(health.poll, f"{stack.web}/healthz", ended, 0.2, {})
            pool.submit(ready.poll, f"{stack.web}/readyz", ended, 0.2, {})
            ended.wait(12.0)
        eventually(lambda: client.get("/activities/").status_code == 200, 60)
        ended.set()

    during = [answer for each, first in zip(api, warm, strict=True) for answer in each.answers[first:]]
    refused = [answer for answer in during if answer[0] != 200]
    assert {status for status, _, _ in health.answers} == {200}
    assert 503 in {status for status, _, _ in ready.answers}
    assert health.usual < SOON_SECONDS
    assert ready.usual < SOON_SECONDS
    assert len(refused) > READERS
    statuses = {(status, bool(retry_after)) for status, _, retry_after in refused}
    # The number of waiting requests of one tenant is limited; more are refused at once.
    assert (503, True) in statuses
    assert statuses <= {(503, True), (429, True)}
    assert max(seconds for _, seconds, _ in during) < GIVEN_UP_SECONDS


def test_work_continues_after_a_worker_was_cut_off_from_postgresql_for_a_while(
    stack: Stack, client: httpx2.Client, proxy: Proxy
) -> None:
    items = [
        {"name": f"quick {number}", "agent_role": ROLE, "input": {"content": TEXT}} for number in range(QUICK)
    ]
    answer = client.post("/activities/", json=items)
    answer.raise_for_status()
    eventually(lambda: _count(client, "done") > QUICK // 10, 60, lambda: str(_statuses(client)))

    proxy.stall()
    time.sleep(SILENT_SECONDS)
    proxy.resume()

    eventually(lambda: _count(client, "done") >= QUICK, 60, lambda: str(_statuses(client)), pause=0.5)
    assert _statuses(client) == {"done": QUICK}
    assert stack.supervisor.is_running("worker"), "its lease was longer than the silence"
    status, result = invariants(stack)
    assert status == 0, result


def _statuses(client: httpx2.Client) -> dict[str, int]:
    counts = {
        status: _count(client, status)
        for status in ("done", "created", "in_progress", "failed", "needs_review")
    }
    return {status: count for status, count in counts.items() if count}


def _count(client: httpx2.Client, status: str) -> int:
    page = client.get("/activities/", params={"status": status, "limit": 200})
    return len(page.json()["results"]) if page.status_code == 200 else -1
