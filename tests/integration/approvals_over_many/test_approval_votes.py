"""Approvals that need several votes."""

from __future__ import annotations

import pytest

from activities.exceptions import (
    AlreadyDecided,
    AlreadyVoted,
    DecisionForbidden,
)
from activities.human_tasks import deadlines, decisions
from activities.models import Deadline, Vote
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.cases import in_one_test
from tests.engine import Engine
from tests.integration.approvals_over_many.voters import voter
from tests.open_questions import open_approval

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def test_two_of_three_must_agree_and_nobody_votes_twice(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    approval = open_approval(
        acme, [activity_id], quorum=2, voters=3, self_approval=False, identity="user:Asker"
    )

    decisions.approve(acme.pk, approval, actor=voter("Ann"), notes="yes")
    with pytest.raises(AlreadyVoted, match=r"Ann has voted about this at .*: approved"):
        decisions.approve(acme.pk, approval, actor=voter("Ann"))
    with pytest.raises(AlreadyVoted):
        decisions.reject(acme.pk, approval, actor=voter("Ann"), notes="changed my mind")
    with pytest.raises(DecisionForbidden, match="You requested this"):
        decisions.approve(acme.pk, approval, actor=voter("Asker"))
    decisions.reject(acme.pk, approval, actor=voter("Bob"), notes="no")
    assert engine.status(acme, approval) == "in_progress"

    decisions.approve(acme.pk, approval, actor=voter("Cleo"), notes="fine")

    decided = engine.get(acme, approval)
    assert (decided.status, decided.reviewer_notes) == ("approved", "Ann: yes\n\nCleo: fine")
    for late in ("Dan", "Ann", "Asker"):
        with pytest.raises(AlreadyDecided, match="Cleo approved this"):
            decisions.approve(acme.pk, approval, actor=voter(late))


def test_an_approval_is_rejected_once_its_quorum_is_out_of_reach(engine: Engine, acme: Tenant) -> None:
    approval = open_approval(acme, quorum=2, voters=3)

    decisions.reject(acme.pk, approval, actor=voter("Ann"), notes="no")
    decisions.reject(acme.pk, approval, actor=voter("Bob"), notes="no")

    assert engine.status(acme, approval) == "rejected"


def test_with_a_quorum_of_one_an_approval_suffices_and_a_rejection_does_not(
    engine: Engine, acme: Tenant
) -> None:
    approval = open_approval(acme, quorum=1, voters=3)

    decisions.reject(acme.pk, approval, actor=voter("Ann"), notes="no")
    status_before = engine.status(acme, approval)
    decisions.approve(acme.pk, approval, actor=voter("Bob"))

    assert (status_before, engine.status(acme, approval)) == ("in_progress", "approved")


def test_the_option_with_the_most_votes_wins_and_of_equal_ones_the_first(
    engine: Engine, acme: Tenant
) -> None:
    most = open_approval(acme, quorum=3, options=("a", "b"))
    equal = open_approval(acme, quorum=2, options=("a", "b"))

    for name, option in (("Ann", "a"), ("Bob", "b"), ("Cleo", "b")):
        decisions.approve(acme.pk, most, actor=voter(name), chosen_option=option)
    for name, option in (("Ann", "b"), ("Bob", "a")):
        decisions.approve(acme.pk, equal, actor=voter(name), chosen_option=option)

    assert (engine.get(acme, most).chosen_option, engine.get(acme, equal).chosen_option) == ("b", "b")


def test_a_default_outcome_needs_no_votes(engine: Engine, acme: Tenant) -> None:
    approval = open_approval(acme, quorum=2, voters=3, due_seconds=60, on_timeout="approve")
    decisions.reject(acme.pk, approval, actor=voter("Ann"), notes="no")
    with tenant_scope(acme.pk):
        (due,) = Deadline.objects.filter(activity_id=approval)

    deadlines.pass_due(due.at)

    decided = engine.get(acme, approval)
    assert (decided.status, decided.decided_by) == ("approved", "deadline")
    with pytest.raises(AlreadyDecided, match="deadline approved this"):
        decisions.approve(acme.pk, approval, actor=voter("Bob"))
    with tenant_scope(acme.pk):
        assert Vote.objects.get(activity_id=approval).actor == "Ann"


@in_one_test("quorum", [1, 2])
def test_the_requester_may_answer_only_with_self_approval(engine: Engine, acme: Tenant, quorum: int) -> None:
    allowed = open_approval(acme, quorum=quorum, identity="user:Ann")
    refused = open_approval(acme, quorum=quorum, identity="user:Ann", self_approval=False)

    decisions.approve(acme.pk, allowed, actor=voter("Ann"))
    with pytest.raises(DecisionForbidden):
        decisions.reject(acme.pk, refused, actor=voter("Ann"), notes="x")

    assert engine.status(acme, allowed) == ("approved" if quorum == 1 else "in_progress")
    assert engine.status(acme, refused) == "created"
