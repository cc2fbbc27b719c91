"""Votes belong to people: each has one, whichever token or session they use. A token without a person has none."""

from __future__ import annotations

from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from rest_framework.test import APIClient

from activities import cancellation
from activities.models import Activity, Vote
from agents.contracts import Accepted
from tenants import members, tokens
from tenants.context import tenant_scope
from tenants.models import Membership, Role, Tenant
from tests.accepted_work import accept_work, is_called_again, next_call
from tests.answers import problem
from tests.engine import Engine
from tests.integration.approvals_api.addresses import INBOX
from tests.open_questions import open_approval
from tests.superusers import create_superuser

pytestmark = pytest.mark.usefixtures("one_at_a_time")

YES = {"decision": "approved"}
NO = {"decision": "rejected", "notes": "No."}


def decide(client: Any, approval: Any, body: Any = YES) -> Any:
    return client.post(f"/api/v1/approvals/{approval}/decide/", body)


def voters(tenant: Tenant, approval: Any) -> list[str]:
    with tenant_scope(tenant.pk):
        return list(Vote.objects.filter(activity_id=approval).order_by("at").values_list("voter", flat=True))


@pytest.fixture
def quorum_question(acme: Tenant) -> UUID:
    """An approval for which two of three people must agree."""
    return open_approval(acme, quorum=2, voters=3)


def test_all_tokens_and_sessions_of_a_person_share_one_vote(
    api: Any, engine: Engine, acme: Tenant, quorum_question: UUID
) -> None:
    first, second = api("admin", person="ann"), api("operator", person="ann")
    ann = User.objects.get(username="ann")
    session = APIClient()
    session.force_login(ann)

    assert decide(first, quorum_question).status_code == 200
    refused = problem(decide(second, quorum_question), 409, "already_voted")
    assert (refused["decision"], refused["detail"].rsplit(": ")[-1]) == ("approved", "approved.")
    problem(decide(second, quorum_question, NO), 409, "already_voted")
    problem(decide(session, quorum_question), 409, "already_voted")

    assert voters(acme, quorum_question) == [f"user:{ann.pk}"]
    assert engine.status(acme, quorum_question) == "in_progress"
    assert decide(api("reviewer", person="bob"), quorum_question).json()["status"] == "approved"


def test_each_vote_that_does_not_decide_is_an_event_and_gives_the_question_a_new_version(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    question = open_approval(acme, quorum=3, voters=5)
    addresses = [f"/api/v1/approvals/{question}/", f"/api/v1/activities/{question}/"]
    decide(api("reviewer", person="ann"), question)
    reader = api("viewer")
    tags = [reader.get(address).headers["ETag"] for address in addresses]

    decide(api("reviewer", person="bob"), question)

    for address, tag in zip(addresses, tags, strict=True):
        assert reader.get(address, HTTP_IF_NONE_MATCH=tag).status_code == 200
    decide(api("reviewer", person="cleo"), question)
    events = reader.get(f"/api/v1/events/?activity={question}", HTTP_ACCEPT="application/json").json()[
        "results"
    ]
    assert [event["kind"] for event in events if not event["kind"].startswith("approval.")] == [
        "activity.created", "activity.started", "activity.voted", "activity.voted", "activity.approved",
    ]  # fmt: skip
    moments = reader.get(f"{addresses[1]}timeline/").json()["results"]
    assert sorted(moment.get("verb") or moment["kind"] for moment in moments) == [
        "approve_gate", "submit", "take_up", "vote", "vote", "vote",
    ]  # fmt: skip


def test_a_token_without_a_person_has_no_vote_and_learns_how_to_get_one(
    api: Any, engine: Engine, acme: Tenant, quorum_question: UUID
) -> None:
    robots = [api("admin", name=f"robot {number}") for number in range(3)]

    for robot in robots:
        for body in (YES, NO):
            refusal = problem(decide(robot, quorum_question, body), 403, "person_required")
            assert "create_token --user" in refusal["detail"]
        problem(robot.post(f"/api/v1/activities/{quorum_question}/approve/"), 403, "person_required")
        (result,) = robot.post(f"{INBOX}decide/", {"items": [{"id": str(quorum_question), **YES}]}).json()[
            "results"
        ]
        assert result["problem"]["code"] == "person_required"

    assert (voters(acme, quorum_question), engine.status(acme, quorum_question)) == ([], "created")


def test_whoever_may_not_decide_learns_that_it_is_decided_already(
    api: Any, engine: Engine, acme: Tenant, quorum_question: UUID
) -> None:
    for person in ("ann", "bob"):
        decide(api("reviewer", person=person), quorum_question)

    late = problem(decide(api("admin", name="robot"), quorum_question, NO), 409, "already_decided")

    assert "approved this" in late["detail"]


def test_nobody_can_vote_on_a_withdrawn_approval(
    api: Any, engine: Engine, acme: Tenant, quorum_question: UUID
) -> None:
    cancellation.cancel(acme.pk, quorum_question, actor="ann")

    assert decide(api("reviewer", person="bob"), quorum_question).status_code == 409
    assert voters(acme, quorum_question) == []


def test_a_token_without_a_person_may_decide_alone_where_no_quorum_is_needed(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    approval = open_approval(acme, identity="user:0")

    assert decide(api("reviewer"), approval).json()["status"] == "approved"


@pytest.mark.parametrize("asks_with", ["token", "session"])
def test_without_self_approval_the_requester_cannot_decide_with_any_credential(
    api: Any, engine: Engine, acme: Tenant, asks_with: str
) -> None:
    token, other_token, session = api("admin", person="ann"), api("admin", person="ann"), APIClient()
    session.force_login(User.objects.get(username="ann"))
    body = {"type": "budget", "title": "May I?", "self_approval": False}
    asker = token if asks_with == "token" else session
    approval = asker.post("/api/v1/approvals/", body, format="json").json()["id"]

    for client in (token, other_token, session):
        problem(client.post(f"/api/v1/approvals/{approval}/decide/", YES, format="json"), 403, "forbidden")
    problem(decide(api("admin", name="robot"), approval), 403, "person_required")

    assert decide(api("reviewer", person="bob"), approval).json()["status"] == "approved"


def test_with_a_quorum_the_requester_has_no_vote_unless_self_approval_is_set(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    asker, same = api("operator", person="ann"), api("admin", person="ann")
    body = {"type": "budget", "title": "May I?", "quorum": 2}
    strict = asker.post("/api/v1/approvals/", body).json()
    permissive = asker.post("/api/v1/approvals/", {**body, "self_approval": True}).json()

    assert (strict["self_approval"], permissive["self_approval"]) == (False, True)
    problem(decide(same, strict["id"]), 403, "forbidden")
    assert decide(same, permissive["id"]).status_code == 200


def test_the_vote_of_a_former_member_still_counts(
    api: Any, engine: Engine, acme: Tenant, quorum_question: UUID
) -> None:
    decide(api("reviewer", person="ann"), quorum_question)
    with tenant_scope(acme.pk):
        Membership.objects.filter(user__username="ann").delete()

    assert decide(api("reviewer", person="bob"), quorum_question).json()["status"] == "approved"


def test_a_token_created_by_a_person_belongs_to_that_person(api: Any, engine: Engine, acme: Tenant) -> None:
    api("admin", person="ann")
    ann = User.objects.get(username="ann")
    principal = members.principal_of(ann)
    _, secret = tokens.mint(principal, "mine", Role.REVIEWER)

    assert tokens.principal_of(secret).identity == principal.identity == f"user:{ann.pk}"
    assert tokens.principal_of(secret).credential != principal.credential


def test_the_command_creates_a_token_for_a_member_with_at_most_their_role(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    api("reviewer", person="ann")
    out = StringIO()
    call_command("create_token", tenant=acme.slug, role="reviewer", user="ann", stdout=out, stderr=StringIO())
    secret = out.getvalue().splitlines()[-1]

    principal = tokens.principal_of(secret)
    assert principal.identity == f"user:{User.objects.get(username='ann').pk}"
    assert principal.actor == "token:command line of ann", "which decisions name"
    with pytest.raises(CommandError, match="ann is reviewer in acme; their token cannot be admin"):
        call_command("create_token", tenant=acme.slug, role="admin", user="ann")
    with pytest.raises(CommandError, match="bob is not a member of acme"):
        call_command("create_token", tenant=acme.slug, role="viewer", user="bob")


def test_a_token_of_a_person_decides_questions_to_their_human_roles_only(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    client = api("reviewer", person="ann")
    with tenant_scope(acme.pk):
        Membership.objects.filter(user__username="ann").update(human_roles=["editor"])

    problem(decide(client, open_approval(acme, human_role="legal")), 403, "forbidden")
    assert decide(client, open_approval(acme, human_role="editor")).status_code == 200


def test_a_token_that_a_superuser_creates_in_a_break_glass_session_belongs_to_nobody(
    engine: Engine, acme: Tenant
) -> None:
    root = members.principal_of(create_superuser(), acme.slug)

    token, secret = tokens.mint(root, "robot", Role.REVIEWER)

    assert root.break_glass_id is not None
    assert token.user_id is None
    assert tokens.principal_of(secret).human_roles == (), "so it may decide all questions that need no person"


@pytest.mark.parametrize("kind", ["an agent's review", "an approval"])
def test_an_approval_does_not_answer_another_question_about_the_same_work(
    api: Any, engine: Engine, acme: Tenant, kind: str
) -> None:
    operator, rules = api("operator"), {"quorum": 3, "voters": 5}
    engine.agent.behaviour = lambda request: Accepted()
    body = {"type": "budget", "title": "May it be published?"}
    if kind == "an approval":
        (work,) = engine.submit(acme)
        about = {"activity_ids": [str(work)]}
        quorum_id = UUID(operator.post("/api/v1/approvals/", {**body, **about, **rules}).json()["id"])
    else:
        work, agent = accept_work(engine, acme)
        about = {"activity_ids": [str(work)]}
        quorum_id = agent.create_with("request_human_review", question="May it be published?")
        with tenant_scope(acme.pk):  # as stored by versions in which a question of an agent could have rules
            Activity.objects.filter(pk=quorum_id).update(decision_rules=rules)
    own = operator.post("/api/v1/approvals/", {**body, **about}).json()["id"]

    assert decide(operator, own).json()["status"] == "approved"

    assert (engine.status(acme, quorum_id), engine.status(acme, work)) == ("created", "awaiting_review")
    for number, person in enumerate(("ann", "bob", "cleo")):
        assert not is_called_again(engine, work), f"{number} of 3 have agreed"
        voted = api("reviewer", person=person).post(f"/api/v1/activities/{quorum_id}/approve/")
        assert voted.status_code == 200
    assert len(voters(acme, quorum_id)) == 3
    assert engine.status(acme, quorum_id) == "approved"
    answers = [
        wake["outcome"] for wake in next_call(engine, work).wakes if wake["reason"] == "review_approved"
    ]
    assert answers == ["approved", "approved"]


def test_old_votes_of_tokens_without_a_person_do_not_count(
    api: Any, engine: Engine, acme: Tenant, quorum_question: UUID
) -> None:
    with tenant_scope(acme.pk):
        for number in range(2):
            Vote.objects.create(
                tenant_id=acme.pk,
                activity_id=quorum_question,
                voter=f"token:{number}",
                actor="robot",
                decision="approve",
            )

    decide(api("reviewer", person="ann"), quorum_question)
    assert engine.status(acme, quorum_question) == "in_progress"
    decide(api("reviewer", person="bob"), quorum_question)
    assert engine.status(acme, quorum_question) == "approved"
