"""Two tenants: one is at full speed in a way that is allowed, and the other one's figures are taken. Real processes, real time."""

from __future__ import annotations

import http.client
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

from django.db import connections

from activities.alerts import raise_alert
from activities.models.alert import AlertKind
from activities.notifications import webhooks
from benchmarks import setting
from benchmarks.serving import web
from orchestrator.processes import standard_processes
from tenants import registration, tokens
from tenants.context import tenant_scope
from tenants.models import Tenant, WebhookEndpoint

Figures = dict[str, float]
RECEIVERS, ANSWER_SECONDS, EVENTS_FOR_SECONDS = 50, 13.0, 120
CLIENTS, READS, CONDITIONS, ROUNDS = 16, 1_000, 1_500, 5


def slow_receivers(folder: Path, scale: float) -> Figures:
    """One tenant's fifty receivers answer after 13 s, to an event a second; how long the other's event takes, one a second."""
    noisy, quiet = _tenant("noisy"), _tenant("quiet")
    seconds = max(int(EVENTS_FOR_SECONDS * scale), 20)
    with _receiver() as (port, arrivals):
        for number in range(RECEIVERS):
            _webhook(noisy, f"http://127.0.0.1:{port}/slow/{number}")
        _webhook(quiet, f"http://127.0.0.1:{port}/quick")
        specs = standard_processes(port=0, flower_port=0, concurrency=None)
        commands = [list(each.argv[2:]) for each in specs if each.name in ("worker", "beat")]
        with setting.Workers(*commands, log=folder / "delivering.log"):
            _event(quiet)
            setting.wait(lambda: len(arrivals) == 1, 120)
            happened = []
            for _ in range(seconds):
                _event(noisy)
                _event(quiet)
                happened.append(time.perf_counter())
                time.sleep(1.0)
            setting.wait(lambda: len(arrivals) == seconds + 1, 900)
    # Events of one tenant may overtake each other, so the n-th arrival is held against the n-th event: what comes late counts late.
    waits = sorted(arrived - began for began, arrived in zip(happened, sorted(arrivals)[1:], strict=True))
    return {
        "other's event p50 s": statistics.median(waits),
        "other's event p95 s": _percentile(waits, 0.95),
        "other's event max s": waits[-1],
    }


def heavy_pipeline(folder: Path, scale: float) -> Figures:
    """A pipeline of 1,500 steps with a condition of its own each: how long until it is refused, and one with 150 until it is saved."""
    tenant = _tenant("heavy")
    refused, saved = [], []
    with web(folder) as port:
        client = _Client(port, tenant)
        for attempt in range(max(int(20 * scale), 5)):
            status, seconds, size = client.put(
                f"/api/v1/pipelines/refused-{attempt}/", _definition(CONDITIONS, attempt)
            )
            assert status == 400, status
            refused.append(seconds * 1000)
            status, seconds, _ = client.put(
                f"/api/v1/pipelines/saved-{attempt}/", _definition(CONDITIONS // 10, attempt)
            )
            assert status == 201, status
            saved.append(seconds * 1000)
    return {
        "bytes of the refused": size,
        "refused p50 ms": statistics.median(refused),
        "refused max ms": max(refused),
        "saved p50 ms": statistics.median(saved),
    }


def noisy_clients(folder: Path, scale: float) -> Figures:
    """Reads of one tenant, alone and while 16 clients of another one save pipelines with 150 conditions as fast as they are let.

    In turns, five times, so that whatever else the machine does counts for both.
    """
    noisy, quiet = _tenant("noisy"), _tenant("quiet")
    going, over, statuses = threading.Event(), threading.Event(), list[int]()
    count = max(int(READS * scale), 50) // ROUNDS
    alone, beside = list[float](), list[float]()
    with web(folder) as port:

        def save(number: int) -> None:
            client, turn = _Client(port, noisy), 0
            while not over.is_set():
                if not going.wait(0.5):
                    continue
                turn += 1
                body = _definition(CONDITIONS // 10, number * 1_000_000 + turn)
                try:
                    statuses.append(client.put(f"/api/v1/pipelines/p-{number}/", body)[0])
                except http.client.HTTPException:
                    client.connection.close()  # it was left alone for too long; the next request opens another

        def read(into: list[float]) -> None:
            reader.connection.close()
            for _ in range(5):
                reader.read()
            for _ in range(count):
                into.append(reader.read())
                time.sleep(0.02)

        reader = _Client(port, quiet)
        clients = [threading.Thread(target=save, args=(number,)) for number in range(CLIENTS)]
        for each in clients:
            each.start()
        for _ in range(ROUNDS):
            read(alone)
            going.set()
            time.sleep(4.0)
            read(beside)
            going.clear()
            time.sleep(8.0)  # what waits is answered
        over.set()
        for each in clients:
            each.join()
    assert not [status for status in statuses if status >= 500], "nobody gets a 500"
    alone.sort()
    beside.sort()
    quickly, slowly = _percentile(alone, 0.95) * 1000, _percentile(beside, 0.95) * 1000
    return {
        "alone p50 ms": statistics.median(alone) * 1000,
        "beside p50 ms": statistics.median(beside) * 1000,
        "alone p95 ms": quickly,
        "beside p95 ms": slowly,
        "beside by alone": slowly / quickly,
        "saved": sum(status in (200, 201) for status in statuses),
        "refused with 429": statuses.count(429),
    }


ALL: dict[str, Callable[[Path, float], Figures]] = {
    "slow_receivers": slow_receivers,
    "heavy_pipeline": heavy_pipeline,
    "noisy_clients": noisy_clients,
}


class _Client:
    """A program with a token and a connection of its own."""

    def __init__(self, port: int, tenant: Tenant) -> None:
        _, secret = tokens.create(tenant, "admin", f"bench {uuid4().hex[:8]}")
        connections.close_all()  # of the thread that it is made in
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}

    def put(self, address: str, body: dict[str, Any]) -> tuple[int, float, int]:
        """Status, seconds and bytes sent."""
        written = json.dumps(body)
        began = time.perf_counter()
        self.connection.request("PUT", address, written, self.headers)
        answer = self.connection.getresponse()
        answer.read()
        return answer.status, time.perf_counter() - began, len(written)

    def read(self) -> float:
        """Seconds of one look at the activities."""
        began = time.perf_counter()
        self.connection.request("GET", "/api/v1/activities/", headers=self.headers)
        answer = self.connection.getresponse()
        text = answer.read()
        assert answer.status == 200, text[:300]
        return time.perf_counter() - began


def _definition(conditions: int, salt: int) -> dict[str, Any]:
    steps = [
        {
            "id": f"s{number}",
            "agent_role": "qa",
            "when": f'params.a{salt}_{number} == "x" and len(params.b) > {number}',
        }
        for number in range(conditions)
    ]
    return {"name": "Heavy", "steps": steps}


def _tenant(name: str) -> Tenant:
    return registration.register(f"{name}-{uuid4().hex[:8]}", "")


def _webhook(tenant: Tenant, url: str) -> None:
    made = WebhookEndpoint(tenant=tenant, url=url)
    webhooks.renew_secret(made)
    with tenant_scope(tenant.pk):
        made.save(force_insert=True)


def _event(tenant: Tenant) -> None:
    with tenant_scope(tenant.pk):
        raise_alert(tenant.pk, AlertKind.TEST, "Something", platform=False)


@contextmanager
def _receiver() -> Iterator[tuple[int, list[float]]]:
    """A server whose /slow answers 200 after 13 s, and whose /quick at once; its port, and when /quick was asked."""
    arrivals: list[float] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path.startswith("/slow"):
                time.sleep(ANSWER_SECONDS)
            else:
                arrivals.append(time.perf_counter())
            try:
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()
            except OSError:
                pass

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads, request_queue_size = True, 256

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_port, arrivals
        server.shutdown()


def _percentile(ordered: list[float], share: float) -> float:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
