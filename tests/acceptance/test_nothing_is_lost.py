"""Processes die, freeze and come back, Redis is wiped, PostgreSQL restarts, and every activity ends exactly once."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any

import httpx2
import psycopg
import pytest

from orchestrator import embedded
from tests.acceptance.stack import Stack, eventually, invariants, running

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

TENANTS = ("north", "east", "south")
ROLES = ("keyword-researcher", "site-auditor", "report-writer")
CAPS = {"keyword-researcher": 3, "site-auditor": 2, "report-writer": 4}
EACH = 12  # of every tenant and role: 108 in all
TEXT = "Bees live in cities. They fly far to find flowers. A roof is a good place for a hive. " * 5
SETTLED = {"done", "failed", "needs_review", "cancelled"}


@pytest.fixture
def stack(django_db_setup: None) -> Iterator[Stack]:
    with running(workers=3, beats=2) as started:
        yield started


def test_a_hundred_activities_each_end_exactly_once_through_crashes_and_outages(stack: Stack) -> None:
    clients = {slug: _tenant(stack, slug) for slug in TENANTS}
    ids = {slug: _submit(client) for slug, client in clients.items()}

    _inject_faults(stack, random.Random(20261121))

    eventually(lambda: _all_settled(clients), 120, lambda: str(_statuses(clients)), pause=1.0)
    assert _statuses(clients) == {"done": len(TENANTS) * len(ROLES) * EACH}
    assert _accepted_results(stack) == dict.fromkeys(chain.from_iterable(ids.values()), 1)
    for slug, client in clients.items():
        for activity_id in ids[slug]:
            client.get(f"/activities/{activity_id}/output/").raise_for_status()
    _caps_were_kept(stack)
    status, result = invariants(stack)
    assert status == 0, result
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
            "params": {"delay_ms": 300},
        }
        for role in ROLES
        for number in range(EACH)
    ]
    answer = client.post("/activities/", json=items)
    answer.raise_for_status()
    return [item["id"] for item in answer.json()["results"]]


def _inject_faults(stack: Stack, dice: random.Random) -> None:
    """Inject faults for about twelve seconds, during the work."""
    supervisor = stack.supervisor
    for number in range(5):
        time.sleep(dice.uniform(0.5, 1.2))
        victim = f"worker-{dice.randrange(3)}"
        if number == 0:
            supervisor.kill(victim)
            stack.start_worker(victim)
        elif number == 1:
            _wipe_redis(stack)
        elif number == 2:
            supervisor.kill(victim, signal.SIGSTOP)
            time.sleep(4.0)  # longer than it takes to be declared lost
            supervisor.kill(victim, signal.SIGCONT)
        elif number == 3:
            _restart_postgres(stack)
        else:
            supervisor.kill("beat-0")
            stack.start_beat("beat-0")
    time.sleep(1.0)
    for number in range(3):  # because the watchdog ends a worker that was frozen with runs
        if not supervisor.is_running(f"worker-{number}"):
            stack.start_worker(f"worker-{number}")


def _wipe_redis(stack: Stack) -> None:
    """Kill Redis and start it without its data."""
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


def _all_settled(clients: dict[str, httpx2.Client]) -> bool:
    """Return whether all work has ended. It reads the next tenant only after the work of the previous one."""
    try:
        return all(
            activity["status"] in SETTLED
            for client in clients.values()
            for activity in _all(client, "/activities/")
        )
    except httpx2.HTTPError:
        return False


def _all(client: httpx2.Client, path: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    following: str | None = f"{path}?limit=200"
    while following:
        answer = client.get(following)
        answer.raise_for_status()
        page = answer.json()
        rows += page["results"]
        following = page["next"]
    return rows


def _accepted_results(stack: Stack) -> dict[str, int]:
    """Return the number of runs of each activity that were accepted as its result. Reading all runs over HTTP takes long."""
    counts = """
        SELECT activity.id::text, count(*) FROM activities_activity activity
        JOIN activities_activityrun run ON run.activity_id = activity.id
        WHERE run.status = 'completed' OR run.id = activity.output_ref
        GROUP BY 1
    """
    with psycopg.connect(stack.environment["DATABASE_URL"]) as connection:
        return dict(connection.execute(counts).fetchall())


def _caps_were_kept(stack: Stack) -> None:
    """Compare the caps with the simultaneous calls that the agents recorded for each tenant and role."""
    roles = stack.recorder()["roles"]
    assert set(roles) >= set(ROLES)
    for role in ROLES:
        for tenant, most in roles[role]["max_running_by_tenant"].items():
            assert most <= CAPS[role], (role, tenant, most)
