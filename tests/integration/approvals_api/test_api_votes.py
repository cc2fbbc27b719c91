"""Votes are people's: one each, whatever they come with, and none of a token that nobody stands behind."""

from __future__ import annotations

from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connections
from rest_framework.test import APIClient

from activities.models import Activity, Vote
from agents.contracts import Accepted
from tenants import members, tokens
from tenants.context import OWNER, tenant_scope
from tenants.models import Membership, Role, Tenant
from tests.engine import Engine
from tests.integration.approvals_api.addresses import INBOX
from tests.integration.test_api_access import problem
from tests.open_questions import asked
from tests.toolbox import at_work, not_woken, woken

pytestmark = pytest.mark.usefixtures("one_at_a_time")

YES = {"decision": "approved"}
NO = {"decision": "rejected", "notes": "No."}


def decide(client: Any, approval: Any, body: Any = YES) -> Any:
    return client.post(f"/api/v1/approvals/{approval}/decide/", body)


def voters(tenant: Tenant, approval: Any) -> list[str]:
    with tenant_scope(tenant.pk):
        return list(Vote.objects.filter(activity_id=approval).order_by("at").values_list("voter", flat=True))


@pytest.fixture
def committee(acme: Tenant) -> UUID:
    """A question that two of three people must agree to."""
    return asked(acme, quorum=2, voters=3)


def test_several_tokens_of_one_person_and_their_session_are_one_vote(
    api: Any, engine: Engine, acme: Tenant, committee: UUID
) -> None:
    first, second = api("admin", person="ann"), api("operator", person="ann")
    ann = User.objects.get(username="ann")
    session = APIClient()
    session.force_login(ann)

    assert decide(first, committee).status_code == 200
    problem(decide(second, committee), 409, "already_voted")
    problem(decide(second, committee, NO), 409, "already_voted")
    problem(decide(session, committee), 409, "already_voted")

    assert voters(acme, committee) == [f"user:{ann.pk}"]
    assert engine.status(acme, committee) == "in_progress"
    assert decide(api("reviewer", person="bob"), committee).json()["status"] == "approved"


def test_a_token_that_nobody_stands_behind_has_no_vote_and_is_told_what_to_do(
    api: Any, engine: Engine, acme: Tenant, committee: UUID
) -> None:
    robots = [api("admin", name=f"robot {number}") for number in range(3)]

    for robot in robots:
        for body in (YES, NO):
            told = problem(decide(robot, committee, body), 403, "person_required")
            assert "create_token --user" in told["detail"]
        problem(robot.post(f"/api/v1/activities/{committee}/approve/"), 403, "person_required")
        (result,) = robot.post(f"{INBOX}decide/", {"items": [{"id": str(committee), **YES}]}).json()[
            "results"
        ]
        assert result["problem"]["code"] == "person_required"

    assert (voters(acme, committee), engine.status(acme, committee)) == ([], "created")


def test_a_token_that_nobody_stands_behind_decides_what_takes_one_decision(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    approval = asked(acme, identity="user:0")

    assert decide(api("reviewer"), approval).json()["status"] == "approved"


@pytest.mark.parametrize("asks_with", ["token", "session"])
def test_who_asks_has_no_say_in_whatever_form_they_come_where_the_rule_says_so(
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


def test_where_several_must_agree_who_asks_has_no_vote_unless_the_question_says_so(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    asker, same = api("operator", person="ann"), api("admin", person="ann")
    body = {"type": "budget", "title": "May I?", "quorum": 2}
    strict = asker.post("/api/v1/approvals/", body).json()
    open_ = asker.post("/api/v1/approvals/", {**body, "self_approval": True}).json()

    assert (strict["self_approval"], open_["self_approval"]) == (False, True)
    problem(decide(same, strict["id"]), 403, "forbidden")
    assert decide(same, open_["id"]).status_code == 200


def test_who_is_no_member_any_more_has_no_vote_and_their_token_goes_on(
    api: Any, engine: Engine, acme: Tenant, committee: UUID
) -> None:
    client = api("admin", person="ann")
    with tenant_scope(acme.pk):
        Membership.objects.filter(user__username="ann").delete()
    tokens._known.clear()

    problem(decide(client, committee), 403, "person_required")

    assert client.get(INBOX).status_code == 200
    with connections[OWNER].cursor() as cursor:
        cursor.execute("DELETE FROM auth_user WHERE username = 'ann'")
    tokens._known.clear()
    assert client.get(INBOX).status_code == 200


def test_a_token_that_a_person_makes_is_that_persons(api: Any, engine: Engine, acme: Tenant) -> None:
    api("admin", person="ann")
    ann = User.objects.get(username="ann")
    principal = members.principal_of(ann)
    _, secret = tokens.mint(principal, "mine", Role.REVIEWER)

    assert tokens.principal_of(secret).identity == principal.identity == f"user:{ann.pk}"
    assert tokens.principal_of(secret).credential != principal.credential


def test_the_command_makes_a_token_of_a_member_which_cannot_do_more_than_they(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    api("reviewer", person="ann")
    out = StringIO()
    call_command("create_token", tenant=acme.slug, role="reviewer", user="ann", stdout=out, stderr=StringIO())
    secret = out.getvalue().splitlines()[-1]

    assert tokens.principal_of(secret).identity == f"user:{User.objects.get(username='ann').pk}"
    with pytest.raises(CommandError, match="ann is reviewer in acme; their token cannot be admin"):
        call_command("create_token", tenant=acme.slug, role="admin", user="ann")
    with pytest.raises(CommandError, match="bob is not a member of acme"):
        call_command("create_token", tenant=acme.slug, role="viewer", user="bob")


def test_a_token_of_a_person_decides_what_their_human_roles_are_asked(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    client = api("reviewer", person="ann")
    with tenant_scope(acme.pk):
        Membership.objects.filter(user__username="ann").update(human_roles=["editor"])

    problem(decide(client, asked(acme, human_role="legal")), 403, "forbidden")
    assert decide(client, asked(acme, human_role="editor")).status_code == 200


@pytest.mark.parametrize("kind", ["an agent's review", "an approval"])
def test_an_approval_over_work_under_a_question_to_three_of_five_does_not_answer_that(
    api: Any, engine: Engine, acme: Tenant, kind: str
) -> None:
    operator, committee = api("operator"), {"quorum": 3, "voters": 5}
    engine.agent.behaviour = lambda request: Accepted()
    body = {"type": "budget", "title": "May it be published?"}
    if kind == "an approval":
        (work,) = engine.submit(acme)
        about = {"activity_ids": [str(work)]}
        asked_of_many = UUID(operator.post("/api/v1/approvals/", {**body, **about, **committee}).json()["id"])
    else:
        work, agent = at_work(engine, acme)
        about = {"activity_ids": [str(work)]}
        asked_of_many = agent.used("request_human_review", question="May it be published?")
        with tenant_scope(acme.pk):  # as it was asked when a question of an agent could have rules
            Activity.objects.filter(pk=asked_of_many).update(decision_rules=committee)
    own = operator.post("/api/v1/approvals/", {**body, **about}).json()["id"]

    assert decide(operator, own).json()["status"] == "approved"

    assert (engine.status(acme, asked_of_many), engine.status(acme, work)) == ("created", "awaiting_review")
    for number, person in enumerate(("ann", "bob", "cleo")):
        assert not_woken(engine, work), f"{number} of 3 have agreed"
        voted = api("reviewer", person=person).post(f"/api/v1/activities/{asked_of_many}/approve/")
        assert voted.status_code == 200
    assert len(voters(acme, asked_of_many)) == 3
    assert engine.status(acme, asked_of_many) == "approved"
    answers = [wake["outcome"] for wake in woken(engine, work).wakes if wake["reason"] == "review_approved"]
    assert answers == ["approved", "approved"]


def test_a_vote_that_was_once_given_with_a_token_of_nobody_does_not_count(
    api: Any, engine: Engine, acme: Tenant, committee: UUID
) -> None:
    with tenant_scope(acme.pk):
        for number in range(2):
            Vote.objects.create(
                tenant_id=acme.pk,
                activity_id=committee,
                voter=f"token:{number}",
                actor="robot",
                decision="approve",
            )

    decide(api("reviewer", person="ann"), committee)
    assert engine.status(acme, committee) == "in_progress"
    decide(api("reviewer", person="bob"), committee)
    assert engine.status(acme, committee) == "approved"
