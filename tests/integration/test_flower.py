"""Flower, started as the standard process, requires a login for everything that shows data."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator

import httpx
import pytest
from django.conf import settings
from flower.urls import handlers

from orchestrator.processes.specs import standard_processes
from tests import servers
from tests.engine import eventually

LOGIN = ("admin", "a password of tests")
#: Addresses without data: health, login pages, static files, and unknown addresses.
OPEN = {"/healthcheck", "/static/x", "/login", "/logout", "/nothing"}


def addresses() -> list[str]:
    """One address for each pattern of Flower."""
    patterns = [str(each.regex.pattern if hasattr(each, "regex") else each[0]) for each in handlers]
    filled = [re.sub(r"\([^)]*\)", "x", pattern.removesuffix("$")).removesuffix("/?") for pattern in patterns]
    return [("/nothing" if each == ".*" else each) for each in filled]


@pytest.fixture(scope="module")
def flower(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    log = tmp_path_factory.mktemp("flower") / "log"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    [spec] = [
        each
        for each in standard_processes(port=0, flower_port=port, concurrency=None)
        if each.name == "flower"
    ]
    environment = {**servers.environment(settings), "FLOWER_BASIC_AUTH": ":".join(LOGIN)}
    environment.pop("FLOWER_UNAUTHENTICATED_API", None)
    with log.open("wb") as output:
        process = subprocess.Popen(
            spec.argv, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}")
    try:
        eventually(lambda: process.poll() is not None or is_healthy(client), 60)
        assert process.poll() is None, log.read_text()
        yield client
    finally:
        client.close()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def is_healthy(client: httpx.Client) -> bool:
    try:
        return client.get("/healthcheck").status_code == 200
    except httpx.TransportError:
        return False


def test_without_a_login_flower_refuses_every_request(flower: httpx.Client) -> None:
    known = addresses()
    assert {"/", "/api/workers", "/metrics", "/api/task/apply/x", "/api/worker/shutdown/x"} <= set(known)

    for login in (None, ("admin", "guessed"), ("", "")):
        accepted = {
            (method, address): answer.status_code
            for address in known
            if address not in OPEN
            for method in ("GET", "POST")
            if (answer := flower.request(method, address, auth=login)).status_code not in (401, 405)
        }
        assert accepted == {}
    for address in OPEN:
        assert "celery" not in flower.get(address).text.lower(), address


def test_with_the_login_flower_shows_workers_and_metrics(flower: httpx.Client) -> None:
    assert flower.get("/", auth=LOGIN).status_code == 200
    assert flower.get("/api/tasks", auth=LOGIN).json() == {}
    assert flower.get("/metrics", auth=LOGIN).headers["Content-Type"].startswith("text/plain")
