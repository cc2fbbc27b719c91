"""Tenants with the same kinds of data and different words, on which isolation is proved."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import connections, transaction
from django.utils import timezone
from rest_framework.test import APIClient

from activities import run_tokens
from activities.models import ActivityRun, BatchItem, ProviderBatch
from activities.models.batch import BatchState, ItemState
from activities.run_tokens import RunToken
from agents.contracts import Accepted, AgentRequest, Completed, Output
from tenants import registration, tokens
from tenants.context import OWNER, tenant_scope
from tenants.events import log
from tenants.models import Membership, Role, Tenant
from tests.engine import Engine
from tests.failed_work import submit_failing
from tests.integration.isolation import filling

API = "/api/v1/"
ROLES = [role.value for role in Role]
NOBODY = "nobody"


@dataclass
class World:
    """A tenant with every kind of data.

    `word` is its name for everything that can be named, and other tenants may send it to the API. `canary` is in all of its
    texts, and no other tenant may ever receive it.
    """

    tenant: Tenant
    word: str
    canary: str
    clients: dict[str, APIClient] = field(default_factory=dict)
    agent: APIClient = field(default_factory=APIClient)  # holds the token of `live_run`
    live_run: Any = None
    mailbox_batch: str = ""

    @property
    def admin(self) -> APIClient:
        return self.clients[Role.ADMIN]

    def text(self) -> str:
        return f"{self.word} {self.canary}"


def build(slug: str, word: str, canary: str) -> World:
    """Create a tenant with every kind of data."""
    engine = Engine(["qa", "dev", "activity-planner"])
    try:
        return _fill(engine, World(registration.register(slug, f"{word} {canary}"), word, canary))
    finally:
        engine.close()


def _fill(engine: Engine, world: World) -> World:
    """Fill the tenant over the API where that is possible, and the other tables row by row."""
    for role in ROLES:
        _, secret = tokens.create(world.tenant, role, f"{role} {world.text()}")
        world.clients[role] = _client_with_token(secret)
    world.clients[NOBODY] = APIClient()
    _add_work(world, engine)
    _add_settings(world)
    _add_member(world)
    _add_batch(world)
    _add_live_run(world, engine)
    while log.number(world.tenant.pk):
        pass
    _add_totals(world)
    filling.fill(world.tenant.pk, world.word, world.canary)
    return world


def _client_with_token(secret: str) -> APIClient:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return client


def _post(world: World, place: str, body: Any = None, **headers: str) -> Any:
    answer = world.admin.post(f"{API}{place}/", {} if body is None else body, headers=headers)
    assert answer.status_code in {200, 201, 202}, (place, answer.status_code, answer.content)
    return answer.json()


def _add_work(world: World, engine: Engine) -> None:
    engine.serve(world.tenant)
    engine.agent.behaviour = lambda request: Completed(
        Output(content=world.text(), data={"found": world.canary})
    )
    text, word = world.text(), world.word
    _post(world, "templates", {"key": word, "name": text, "agent_role": "qa", "params": {"tone": text}})
    steps = [{"id": "a", "agent_role": "qa", "name": text, "requires_approval": True}]
    _post(world, "pipelines", {"key": word, "name": text, "description": text, "steps": steps})
    _post(world, f"pipelines/{word}/runs", {"params": {"topic": text}}, **{"Idempotency-Key": "once"})
    own = {"params": {"brief": text}, "dedup_key": word}
    _post(world, "activities", {"name": text, "agent_role": "qa", **own})
    _post(world, "activities", {"name": text, "human_role": word})
    _add_conversations(world)
    engine.drain()
    submit_failing(engine, world.tenant, count=2)


def _add_settings(world: World) -> None:
    text, word = world.text(), world.word
    activity = world.admin.get(f"{API}activities/?limit=1").json()["results"][0]["id"]
    dataset = {"name": word, "description": text, "fields": {"id": "string"}, "rows": [{"id": word}]}
    _post(world, "datasets", dataset)
    _post(world, "skills", {"key": word, "name": text, "description": text, "content": text})
    deliverable = {"key": word, "name": text, "description": text, "pipelines": [word]}
    created = _post(world, "deliverables", deliverable)
    _post(world, f"deliverables/{created['id']}/start-period")
    _post(world, "budgets", {"name": text, "cap": "25.50", "period": "month"})
    _post(world, "channels", {"kind": word, "name": text, "details": {"account": world.canary}})
    mail = {"kind": "email", "name": text[:100], "target": f"{world.canary}@example.com"}
    _post(world, "notification-channels", mail)
    _post(world, "webhooks", {"url": f"https://93.184.216.34/{word}", "description": text})
    question = {"type": "other", "title": text, "description": text, "activity_ids": [activity]}
    _post(world, "approvals", {**question, "human_role": word})
    schedule = {"name": text, "repeat": "repeating", "cron": "0 8 * * *", "target_type": "agent"}
    created = _post(world, "schedules", {**schedule, "agent_role": "qa", "enabled": True})
    _post(world, f"schedules/{created['id']}/run")


def _add_member(world: World) -> None:
    user = User.objects.create_user(f"member-{world.tenant.slug}")
    with tenant_scope(world.tenant.pk):
        Membership.objects.create(
            tenant=world.tenant, user=user, role=Role.OPERATOR, human_roles=[world.word]
        )


def _add_conversations(world: World) -> None:
    """A message that an agent has taken, and a subagent whose result goes to the same mailbox."""
    text, word = world.text(), world.word
    message = {"kind": "message", "text": text, "content": {"note": text}}
    _post(world, f"mailboxes/{word}/items", {**message, "client_message_id": word})
    taken = _post(world, f"mailboxes/{word}/take", {"consumer": text})
    world.mailbox_batch = taken["batch_id"]
    _post(world, f"mailboxes/{word}/items", message)
    subagent = {"subagent_type": "qa", "prompt": text, "description": text, "parent_mailbox": word}
    _post(world, "subagents", subagent)


def _add_batch(world: World) -> None:
    """A batch with one item that was sent to a model provider."""
    tenant = world.tenant.pk
    at = {"agent_role": "qa", "provider": f"{world.word}|{world.canary}:443|digest", "model": world.text()}
    with tenant_scope(tenant):
        run = ActivityRun.objects.filter(tenant_id=tenant).earliest("pk")
        batch = ProviderBatch.objects.create(
            tenant_id=tenant,
            size=1,
            state=BatchState.SENT,
            external_id=world.canary,
            sent_at=timezone.now(),
            **at,
        )
        BatchItem.objects.create(
            tenant_id=tenant, activity_id=run.activity_id, run_id=run.pk, fence=run.fence, batch=batch, bytes=9,
            state=ItemState.BOUND, body={"note": world.canary}, leave_at=timezone.now() + timedelta(days=1), **at
        )  # fmt: skip


def _add_totals(world: World) -> None:
    """Totals of old entries of the ledger, which the application itself cannot write."""
    with transaction.atomic(using=OWNER), connections[OWNER].cursor() as cursor:
        cursor.execute("SELECT set_config('app.tenant_id', %s, true)", [str(world.tenant.pk)])
        cursor.execute(
            """INSERT INTO tenants_usagetotal (tenant_id, month, agent_role, model, input_tokens, output_tokens, dollars, runs, entries)
               VALUES (%s, date_trunc('month', now()), %s, %s, 1, 1, 1, 1, 1)""",
            [world.tenant.pk, world.word, world.text()],
        )


def _add_live_run(world: World, engine: Engine) -> None:
    """A live run that its agent has accepted, and a client with its token."""
    requests: list[AgentRequest] = []

    def accept(request: AgentRequest) -> Accepted:
        requests.append(request)
        return Accepted()

    engine.agent.behaviour = accept
    engine.submit(world.tenant, "qa", params={"brief": world.text()})
    engine.drain()
    with tenant_scope(world.tenant.pk):
        run = ActivityRun.objects.get(pk=requests[-1].run_id)
    token = RunToken(world.tenant.pk, run.activity_id, run.pk, run.fence)
    world.live_run, world.agent = run, _client_with_token(run_tokens.issuing(token)().token)
