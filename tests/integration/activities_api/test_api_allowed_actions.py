"""`allowed_actions` names exactly the actions that the API accepts from the caller, in every status and for every kind of item."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction
from rest_framework.test import APIClient

from activities import cancellation, dead_letters, transitions
from activities.activity_tree import SUCCESSORS
from activities.api.activities import ActivityViewSet
from activities.decision_rules import Voter
from activities.human_tasks import decisions
from activities.models import Activity
from activities.states import LIVE, LinkKind, Status
from activities.submission import NewActivity, submit
from tenants.context import APP, tenant_scope
from tenants.models import Role, Tenant
from tenants.principals import Principal
from tests.accepted_work import RESULT, accept_and_create, accept_work
from tests.engine import Engine
from tests.failed_work import submit_failing
from tests.integration.decisions_api.questions import ACTIVITIES, address_of
from tests.open_questions import open_approval

pytestmark = [
    pytest.mark.long,
    pytest.mark.usefixtures("one_at_a_time", "agent_accepts", "unthrottled", "no_states_in_the_audit_trail"),
]

#: Every action with a body that it accepts.
BODIES: dict[str, dict[str, Any]] = {
    "start": {},
    "complete": {"note": "Done."},
    "approve": {"notes": "Good."},
    "reject": {"notes": "Shorter."},
    "resolve": {"note": "It is back."},
    "review": {"approved": True},
    "cancel": {},
    "retry": {},
    "reassign": {"human_role": "devops", "reason": "Yours."},
    "run-now": {"reason": "Urgent."},
}
#: By link kind (None: no link) and assignee type: the statuses in which the walk must have seen such an activity.
OPEN = {Status.CREATED, Status.IN_PROGRESS}
SEEN = {
    (None, "agent"): set(Status),
    (None, "human"): OPEN
    | {Status.DONE, Status.APPROVED, Status.REJECTED, Status.REASSIGNED, Status.CANCELLED},
    (LinkKind.GATE, "human"): OPEN | {Status.APPROVED, Status.REJECTED, Status.CANCELLED},
    (LinkKind.REVIEW, "human"): OPEN | {Status.APPROVED, Status.REJECTED, Status.CANCELLED},
    (LinkKind.APPROVAL, "human"): OPEN | {Status.APPROVED, Status.REJECTED, Status.CANCELLED},
    (LinkKind.RESOLUTION, "human"): OPEN | {Status.DONE, Status.REASSIGNED, Status.CANCELLED},
    (LinkKind.SUBTASK, "human"): OPEN | {Status.DONE, Status.REASSIGNED, Status.CANCELLED},
    (LinkKind.SUBTASK, "agent"): {Status.CREATED, Status.REASSIGNED, Status.CANCELLED},
    (LinkKind.ESCALATION, "human"): OPEN | {Status.DONE, Status.CANCELLED},
    (LinkKind.REASSIGNED_FROM, "human"): {Status.CREATED},
    (LinkKind.REVISION_OF, "agent"): {Status.CREATED},
}


def create_everything(engine: Engine, tenant: Tenant) -> None:
    """Create one of everything that waits, runs or has ended."""
    for tool, arguments in (
        ("report_blocker", {"type": "api_down", "message": "503"}),
        ("request_human_review", {"question": "Is this the tone?", "human_role": "editor"}),
        ("create_approval", {"type": "x", "title": "Which way?", "human_role": "editor"}),
        ("create_subtask", {"name": "part", "agent_role": "ba", "blocking": True}),
        ("create_subtask", {"name": "part", "human_role": "editor", "blocking": True}),
    ):
        accept_and_create(engine, tenant, tool, arguments)
    for decide in (None, decisions.approve, decisions.reject):
        gated, agent = accept_work(
            engine, tenant, requires_approval=True, metadata={"approver_role": "editor"}
        )
        agent.post("complete", RESULT)
        if decide is not None:
            decide(tenant.pk, gated, actor="Ann", notes="Shorter.")
    _, done = accept_work(engine, tenant)
    done.post("complete", RESULT)
    accept_work(engine, tenant)
    submit_failing(engine, tenant)
    dead_letters.handle_waiting()
    submit_failing(engine, tenant)
    submit_failing(engine, tenant, dedup_key="same")
    held, assigned, cancelled, _, _ = engine.submit(tenant, count=5, role="dev")
    engine.submit(tenant, dedup_key="same")
    open_approval(tenant, [held], human_role="editor", quorum=2, voters=3)
    cancellation.cancel(tenant.pk, cancelled, actor="Ann")
    with tenant_scope(tenant.pk):
        transitions.apply(assigned, "claim", actor="test")
        submit(
            [
                NewActivity(name="Read it", human_role="editor"),
                NewActivity(name="May it go out?", human_role="editor", is_approval_gate=True),
            ],
            actor="test",
        )


@contextmanager
def undone(tenant: Tenant) -> Iterator[None]:
    """Undo everything in the block."""
    with tenant_scope(tenant.pk), transaction.atomic(using=APP):
        yield
        transaction.set_rollback(True, using=APP)


def client_of(tenant: Tenant, role: Role, **rights: Any) -> APIClient:
    """Return a client of a person. It is authenticated without a query, which `undone` would not allow."""
    client = APIClient()
    principal = Principal(tenant.pk, tenant.slug, role, "user:ann", **{"user_id": 1, **rights})
    client.force_authenticate(user=principal)  # type: ignore[arg-type]  # the API knows only principals
    return client


def listed(client: APIClient) -> dict[str, list[str]]:
    rows = client.get(f"{ACTIVITIES}?limit=200").json()["results"]
    return {row["id"]: row["allowed_actions"] for row in rows}


def accepted(tenant: Tenant, client: APIClient, activity_id: str) -> list[str]:
    """Try every action and return those that the API accepts."""
    names = []
    for name, body in BODIES.items():
        with undone(tenant):
            answer = client.post(address_of(activity_id, name), body)
        assert answer.status_code in (200, 201, 403, 409), (name, answer.content)
        if answer.status_code < 400:
            names.append(name)
    return names


class Walk:
    """Compares the lists of activities with what the API accepts, once for each kind of activity in each status."""

    def __init__(self, tenant: Tenant, client: APIClient) -> None:
        self.tenant, self.client = tenant, client
        self.compared: set[tuple[Any, ...]] = set()
        self.differences: dict[tuple[Any, ...], list[str]] = {}

    def compare(self, statuses: Collection[str] = tuple(Status)) -> list[Activity]:
        """Compare the lists of activities in these statuses, and return those that were compared: the first of each kind."""
        names = listed(self.client)
        with tenant_scope(self.tenant.pk):
            rows = list(
                Activity.objects.filter(status__in=statuses)
                .select_related("parent")
                .order_by("created_at", "pk")
            )
        return [row for row in rows if self._is_new(row, names[str(row.pk)])]

    def _is_new(self, row: Activity, names: list[str]) -> bool:
        above = (row.parent.link_kind,) if row.parent and row.link_kind in SUCCESSORS else ()
        kind = (
            row.link_kind,
            row.assignee_type,
            row.status,
            row.is_approval_gate,
            row.dedup_key,
            *above,
            *names,
        )
        if kind in self.compared:
            return False
        self.compared.add(kind)
        real = accepted(self.tenant, self.client, str(row.pk))
        if row.status == Status.REASSIGNED:  # an answer to a reassigned item reaches its successor
            real = [name for name in real if name != "resolve"]
        if sorted(names) != sorted(real):
            self.differences[kind] = real
        return True

    def go_on(self) -> None:
        """Do every action once with each kind of activity, and compare what has changed. Leaves nothing behind."""
        done = set()
        rows, names = self.compare(), listed(self.client)
        for row in rows:
            for name in names[str(row.pk)]:
                status = row.status if row.assignee_type == "agent" else ""
                what = (row.link_kind, row.is_approval_gate, status, name)
                if what not in done:
                    done.add(what)
                    with undone(self.tenant):
                        self.client.post(address_of(row.pk, name), BODIES[name])
                        self.compare()

    def seen(self, link_kind: str | None, assignee_type: str) -> set[str]:
        return {kind[2] for kind in self.compared if kind[:2] == (link_kind, assignee_type)}


def readers_see_no_action(tenant: Tenant) -> None:
    for client in (client_of(tenant, Role.VIEWER), client_of(tenant, Role.OPERATOR, scopes=("read",))):
        assert not any(listed(client).values())


def a_reviewer_sees_exactly_what_is_accepted(tenant: Tenant) -> None:
    for human_roles in ((), ("devops",)):
        walk = Walk(tenant, client_of(tenant, Role.REVIEWER, human_roles=human_roles))
        walk.compare(LIVE)
        assert walk.differences == {}, human_roles


def an_operator_sees_exactly_what_is_accepted_in_every_status_and_for_every_kind(tenant: Tenant) -> None:
    walk = Walk(tenant, client_of(tenant, Role.OPERATOR))

    walk.go_on()

    assert walk.differences == {}
    missing = {kind: statuses - walk.seen(*kind) for kind, statuses in SEEN.items()}
    assert not any(missing.values()), missing


def test_each_role_sees_exactly_what_is_accepted_from_it(engine: Engine, acme: Tenant) -> None:
    """They share the work, because creating it takes as long as looking at it, and nothing that they do remains."""
    create_everything(engine, acme)

    readers_see_no_action(acme)
    a_reviewer_sees_exactly_what_is_accepted(acme)
    an_operator_sees_exactly_what_is_accepted_in_every_status_and_for_every_kind(acme)


def test_only_those_who_may_still_vote_see_the_decision(engine: Engine, acme: Tenant) -> None:
    (held,) = engine.submit(acme)
    vote = open_approval(acme, [held], human_role="editor", quorum=2, voters=3)
    decisions.approve(acme.pk, vote, actor=Voter("user:bob", identity="user:2"))
    callers = {
        "may vote": client_of(acme, Role.REVIEWER),
        "has another human role": client_of(acme, Role.REVIEWER, human_roles=("devops",)),
        "is no person": client_of(acme, Role.REVIEWER, user_id=None, token_id=UUID(int=1)),
        "has voted": client_of(acme, Role.REVIEWER, user_id=2),
    }

    lists = {who: listed(client)[str(vote)] for who, client in callers.items()}

    assert lists == {who: accepted(acme, client, str(vote)) for who, client in callers.items()}
    assert [who for who, names in lists.items() if names] == ["may vote"]


def test_the_walk_covers_every_action_of_an_activity() -> None:
    actions = {each.url_path for each in ActivityViewSet.get_extra_actions() if "post" in each.mapping}

    assert actions | {"run-now"} == set(BODIES)
