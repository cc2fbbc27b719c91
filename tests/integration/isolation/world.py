"""Two tenants with the same kinds of data, told apart by words: what the proof of isolation is carried out on."""

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
from tests.failed_work import failed
from tests.integration.isolation import filling

API = "/api/v1/"
ROLES = [role.value for role in Role]
NOBODY = "nobody"


@dataclass
class World:
    """A tenant with everything that a tenant can have.

    `word` names its things wherever a name may be chosen, and may be sent to the API by others; `canary` is in
    every text of its, and nobody else may ever be shown it.
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
    """A new tenant that has everything."""
    engine = Engine(["qa", "dev", "activity-planner"])
    try:
        return _built(engine, World(registration.register(slug, f"{word} {canary}"), word, canary))
    finally:
        engine.close()


def _built(engine: Engine, world: World) -> World:
    """Filled over the API where it has a door, and the rest of its tables row by row."""
    for role in ROLES:
        _, secret = tokens.create(world.tenant, role, f"{role} {world.text()}")
        world.clients[role] = _bearing(secret)
    world.clients[NOBODY] = APIClient()
    _work(world, engine)
    _things(world)
    _people(world)
    _batches(world)
    _live_run(world, engine)
    while log.number(world.tenant.pk):
        pass
    _totals(world)
    filling.fill(world.tenant.pk, world.word, world.canary)
    return world


def _bearing(secret: str) -> APIClient:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return client


def _made(world: World, place: str, body: Any = None, **headers: str) -> Any:
    answer = world.admin.post(f"{API}{place}/", {} if body is None else body, headers=headers)
    assert answer.status_code in {200, 201, 202}, (place, answer.status_code, answer.content)
    return answer.json()


def _work(world: World, engine: Engine) -> None:
    engine.serve(world.tenant)
    engine.agent.behaviour = lambda request: Completed(
        Output(content=world.text(), data={"found": world.canary})
    )
    text, word = world.text(), world.word
    _made(world, "templates", {"key": word, "name": text, "agent_role": "qa", "params": {"tone": text}})
    steps = [{"id": "a", "agent_role": "qa", "name": text, "requires_approval": True}]
    _made(world, "pipelines", {"key": word, "name": text, "description": text, "steps": steps})
    _made(world, f"pipelines/{word}/runs", {"params": {"topic": text}}, **{"Idempotency-Key": "once"})
    own = {"params": {"brief": text}, "dedup_key": word}
    _made(world, "activities", {"name": text, "agent_role": "qa", **own})
    _made(world, "activities", {"name": text, "human_role": word})
    _conversations(world)
    engine.drain()
    failed(engine, world.tenant, count=2)


def _things(world: World) -> None:
    text, word = world.text(), world.word
    activity = world.admin.get(f"{API}activities/?limit=1").json()["results"][0]["id"]
    dataset = {"name": word, "description": text, "fields": {"id": "string"}, "rows": [{"id": word}]}
    _made(world, "datasets", dataset)
    _made(world, "skills", {"key": word, "name": text, "description": text, "content": text})
    deliverable = {"key": word, "name": text, "description": text, "pipelines": [word]}
    made = _made(world, "deliverables", deliverable)
    _made(world, f"deliverables/{made['id']}/start-period")
    _made(world, "budgets", {"name": text, "cap": "25.50", "period": "month"})
    _made(world, "channels", {"kind": word, "name": text, "details": {"account": world.canary}})
    mail = {"kind": "email", "name": text[:100], "target": f"{world.canary}@example.com"}
    _made(world, "notification-channels", mail)
    _made(world, "webhooks", {"url": f"https://93.184.216.34/{word}", "description": text})
    question = {"type": "other", "title": text, "description": text, "activity_ids": [activity]}
    _made(world, "approvals", {**question, "human_role": word})
    schedule = {"name": text, "repeat": "repeating", "cron": "0 8 * * *", "target_type": "agent"}
    made = _made(world, "schedules", {**schedule, "agent_role": "qa", "enabled": True})
    _made(world, f"schedules/{made['id']}/run")


def _people(world: World) -> None:
    user = User.objects.create_user(f"member-{world.tenant.slug}")
    with tenant_scope(world.tenant.pk):
        Membership.objects.create(
            tenant=world.tenant, user=user, role=Role.OPERATOR, human_roles=[world.word]
        )


def _conversations(world: World) -> None:
    """Something said to an agent and taken by it, and a subagent that tells this conversation of its end."""
    text, word = world.text(), world.word
    said = {"kind": "message", "text": text, "content": {"note": text}}
    _made(world, f"mailboxes/{word}/items", {**said, "client_message_id": word})
    taken = _made(world, f"mailboxes/{word}/take", {"consumer": text})
    world.mailbox_batch = taken["batch_id"]
    _made(world, f"mailboxes/{word}/items", said)
    asked = {"subagent_type": "qa", "prompt": text, "description": text, "parent_mailbox": word}
    _made(world, "subagents", asked)


def _batches(world: World) -> None:
    """A batch that a model provider has, with one item."""
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


def _totals(world: World) -> None:
    """What is left of old entries of the ledger, which the application itself may not write."""
    with transaction.atomic(using=OWNER), connections[OWNER].cursor() as cursor:
        cursor.execute("SELECT set_config('app.tenant_id', %s, true)", [str(world.tenant.pk)])
        cursor.execute(
            """INSERT INTO tenants_usagetotal (tenant_id, month, agent_role, model, input_tokens, output_tokens, dollars, runs, entries)
               VALUES (%s, date_trunc('month', now()), %s, %s, 1, 1, 1, 1, 1)""",
            [world.tenant.pk, world.word, world.text()],
        )


def _live_run(world: World, engine: Engine) -> None:
    """A run that its agent has accepted and not ended, and a client that holds its token."""
    asked: list[AgentRequest] = []

    def accept(request: AgentRequest) -> Accepted:
        asked.append(request)
        return Accepted()

    engine.agent.behaviour = accept
    engine.submit(world.tenant, "qa", params={"brief": world.text()})
    engine.drain()
    with tenant_scope(world.tenant.pk):
        run = ActivityRun.objects.get(pk=asked[-1].run_id)
    token = RunToken(world.tenant.pk, run.activity_id, run.pk, run.fence)
    world.live_run, world.agent = run, _bearing(run_tokens.issue(token).token)
