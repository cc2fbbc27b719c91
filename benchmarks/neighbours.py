"""Two tenants: one works at the full speed that its limits allow, and the other one is measured. Real processes, real time."""

from __future__ import annotations

import http.client
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

from activities.alerts import raise_alert
from activities.models.alert import AlertKind
from activities.notifications import webhooks
from benchmarks import environment
from benchmarks.environment import wait_until
from benchmarks.figures import Figures, percentile
from benchmarks.workload import ApiClient
from tenants import registration
from tenants.context import tenant_scope
from tenants.models import Tenant, WebhookEndpoint

RECEIVERS, ANSWER_SECONDS, EVENTS_FOR_SECONDS = 50, 13.0, 120
CLIENTS, READS, CONDITIONS, ROUNDS = 16, 1_000, 1_500, 5


def slow_receivers(folder: Path, scale: float) -> Figures:
    """Deliver an event per second to 50 receivers that answer after 13 s. Measures the deliveries of another tenant's events."""
    noisy, quiet = _tenant("noisy"), _tenant("quiet")
    seconds = max(int(EVENTS_FOR_SECONDS * scale), 20)
    with _receiver() as (port, arrivals):
        for number in range(RECEIVERS):
            _webhook(noisy, f"http://127.0.0.1:{port}/slow/{number}")
        _webhook(quiet, f"http://127.0.0.1:{port}/quick")
        commands = environment.standard_commands(0)
        with environment.Processes(commands["worker"], commands["beat"], log=folder / "delivery.log"):
            _event(quiet)
            wait_until(lambda: len(arrivals) == 1, 120)
            raised = []
            for _ in range(seconds):
                _event(noisy)
                _event(quiet)
                raised.append(time.perf_counter())
                time.sleep(1.0)
            wait_until(lambda: len(arrivals) == seconds + 1, 900)
    # Events of one tenant may overtake each other, so the n-th arrival is compared with the n-th event.
    waits = [arrival - began for began, arrival in zip(raised, sorted(arrivals)[1:], strict=True)]
    return {
        "other's event p50 s": statistics.median(waits),
        "other's event p95 s": percentile(waits, 95),
        "other's event max s": max(waits),
    }


def heavy_pipeline(folder: Path, scale: float) -> Figures:
    """Save pipelines whose steps have a condition each. Measures the refusal of 1,500 conditions, and the saving of 150."""
    tenant = _tenant("heavy")
    refused, saved = [], []
    with environment.web(folder) as port:
        client = ApiClient(port, tenant)
        for attempt in range(max(int(20 * scale), 5)):
            status, seconds, size = client.send(
                "PUT", f"/pipelines/refused-{attempt}/", _definition(CONDITIONS, attempt)
            )
            assert status == 400, status
            refused.append(seconds * 1000)
            status, seconds, _ = client.send(
                "PUT", f"/pipelines/saved-{attempt}/", _definition(CONDITIONS // 10, attempt)
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
    """Measure reads of one tenant, alone and while 16 clients of another one save pipelines of 150 conditions as fast as they may.

    Both are measured five times in turns, so that other load of the machine affects both.
    """
    noisy, quiet = _tenant("noisy"), _tenant("quiet")
    saving, over, statuses = threading.Event(), threading.Event(), list[int]()
    count = max(int(READS * scale), 50) // ROUNDS
    alone, beside = list[float](), list[float]()
    with environment.web(folder) as port:

        def save(number: int) -> None:
            client, turn = ApiClient(port, noisy), 0
            while not over.is_set():
                if not saving.wait(0.5):
                    continue
                turn += 1
                body = _definition(CONDITIONS // 10, number * 1_000_000 + turn)
                try:
                    statuses.append(client.send("PUT", f"/pipelines/p-{number}/", body)[0])
                except (http.client.HTTPException, OSError):
                    client.connection.close()  # idle for too long; the next request opens another one

        def read() -> list[float]:
            reader.connection.close()
            seconds = []
            for _ in range(count + 5):
                seconds.append(reader.time("GET", "/activities/"))
                time.sleep(0.02)
            return seconds[5:]

        reader = ApiClient(port, quiet)
        clients = [threading.Thread(target=save, args=(number,)) for number in range(CLIENTS)]
        for each in clients:
            each.start()
        for _ in range(ROUNDS):
            alone += read()
            saving.set()
            time.sleep(4.0)
            beside += read()
            saving.clear()
            time.sleep(8.0)  # waiting requests are answered
        over.set()
        for each in clients:
            each.join()
    assert not [status for status in statuses if status >= 500]
    alone_p95, beside_p95 = percentile(alone, 95) * 1000, percentile(beside, 95) * 1000
    return {
        "alone p50 ms": statistics.median(alone) * 1000,
        "beside p50 ms": statistics.median(beside) * 1000,
        "alone p95 ms": alone_p95,
        "beside p95 ms": beside_p95,
        "beside by alone": beside_p95 / alone_p95,
        "saved": sum(status in (200, 201) for status in statuses),
        "refused with 429": statuses.count(429),
    }


SCENARIOS: dict[str, Callable[[Path, float], Figures]] = {
    "slow_receivers": slow_receivers,
    "heavy_pipeline": heavy_pipeline,
    "noisy_clients": noisy_clients,
}


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
    webhook = WebhookEndpoint(tenant=tenant, url=url)
    webhooks.renew_secret(webhook)
    with tenant_scope(tenant.pk):
        webhook.save(force_insert=True)


def _event(tenant: Tenant) -> None:
    with tenant_scope(tenant.pk):
        raise_alert(tenant.pk, AlertKind.TEST, "Something", platform=False)


@contextmanager
def _receiver() -> Iterator[tuple[int, list[float]]]:
    """A server that answers `/slow` after 13 s and `/quick` immediately. Yields its port, and the times of the requests for `/quick`."""
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
