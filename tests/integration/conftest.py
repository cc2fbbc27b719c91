"""Fixtures of the engine."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import environ
import pytest

from activities.admission import scripts
from activities.execution import following_step
from activities.maintenance import invariants
from agents import configuration, outbound, scheduler_settings
from agents.contracts import Accepted
from agents.models import Agent, AgentVersionDeployment
from tenants.api import auditing, throttling
from tenants.context import system_scope
from tenants.models import Tenant
from tenants.redis import SentCommand
from tests import pages
from tests.api_objects import ApiObjects, create_api_objects
from tests.engine import Engine
from tests.flows import Flow
from tests.receivers import HttpReceiver, MailReceiver, http_receiver, mail_receiver
from tests.registry import temporary_agent


@pytest.fixture
def engine(database: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Three roles, ten seats and a scripted agent. Whether a step follows at once does not depend on the speed of the machine."""
    monkeypatch.setattr(SentCommand, "is_answered", lambda self: True)
    monkeypatch.setattr(scripts.PassedSlot, "_is_known", False)
    following_step.OTHERS_WAIT.clear()
    running = Engine(["qa", "dev", "seo"])
    yield running
    running.close()


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    """The fixture `tenant`, for which the scripted agent does every role."""
    engine.serve(tenant)
    return tenant


@pytest.fixture
def start(engine: Engine, acme: Tenant) -> Iterator[Callable[..., Flow]]:
    """`start(step, step, ..., params=...)` starts a pipeline of these steps. The invariants are checked after the test."""
    yield lambda *steps, **new: Flow(engine, acme, *steps, **new)
    assert invariants.check() == []


@pytest.fixture
def agent_accepts(engine: Engine) -> None:
    """Let the scripted agent accept its work and report later by callback."""
    engine.agent.behaviour = lambda request: Accepted()


@pytest.fixture
def scheduler_defaults(engine: Engine, acme: Tenant) -> Iterator[None]:
    """The fixture `acme`, and default settings of the scheduler before and after the test."""
    scheduler_settings.forget()
    yield
    scheduler_settings.forget()


@pytest.fixture
def receiver(settings: Any, database: None) -> Iterator[HttpReceiver]:
    """An HTTP server that the platform may call."""
    with http_receiver() as running:
        settings.ORCHESTRATOR_EGRESS_ALLOW = (running.place,)
        yield running
    outbound.close_connections()


@pytest.fixture
def mails(settings: Any) -> Iterator[MailReceiver]:
    """An SMTP server that receives the mail of the platform."""
    with mail_receiver() as running:
        settings.EMAIL_URL = f"smtp://127.0.0.1:{running.port}"
        for name, value in environ.Env.email_url_config(settings.EMAIL_URL).items():
            setattr(settings, name, value)
        yield running


@pytest.fixture
def one_at_a_time(settings: object) -> None:
    """Each message runs exactly one activity."""
    settings.ORCHESTRATOR_CONTINUE_SECONDS = -1.0  # type: ignore[attr-defined]


@pytest.fixture(scope="session", autouse=True)
def browser_ends() -> Iterator[None]:
    yield
    pages.end_browser()


@pytest.fixture
def unthrottled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit no caller of the API. Two calls to Redis before each request would be a tenth of the time of thousands of requests."""
    monkeypatch.setattr(throttling.TenantThrottle, "allow_request", lambda self, request, view: True)


@pytest.fixture
def no_states_in_the_audit_trail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not read an object for the trail before each request. It takes a quarter of the time, and is what its own address answers."""
    monkeypatch.setattr(auditing, "_state_of", lambda view: None)


@pytest.fixture(autouse=True)
def no_heartbeat_left() -> Iterator[None]:
    """Fail a test that does not end its lease, because its heartbeat would fail in a later test."""
    yield
    heartbeats = [thread for thread in threading.enumerate() if thread.name == "heartbeat"]
    for thread in heartbeats:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in heartbeats), "end the lease: leases.end()"


@pytest.fixture
def api_objects(api: Any, tenant: Tenant, engine: Engine, unthrottled: None) -> Iterator[ApiObjects]:
    """One of everything in the API, with the agent `scribe`. Restores the registry, and neither limits nor logs the many requests."""
    with system_scope():
        before = set(Agent.objects.values_list("pk", flat=True))
        deployed = set(AgentVersionDeployment.objects.values_list("pk", flat=True))
    logging.disable(logging.CRITICAL)
    try:
        with temporary_agent(endpoint="http://127.0.0.1:9/scribe"):
            admin = api("admin", platform=True)
            objects = create_api_objects(engine, tenant, admin)
            version = {"version": "1.0.0", "environment": "staging"}
            deployment = admin.post("/api/v1/agents/scribe/deployments/", version).json()["id"]
            objects.parameters["agents/"] = {"role": "scribe", "agent_role": "scribe", "id": deployment}
            yield objects
    finally:
        logging.disable(logging.NOTSET)
        with system_scope():
            Agent.objects.exclude(pk__in=before).delete()
            AgentVersionDeployment.objects.exclude(pk__in=deployed).delete()
        configuration.forget()
