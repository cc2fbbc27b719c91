"""An agent has a part of its work done by somebody else: what wakes it and with what, what does not, and what bounds a tree of subtasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from activities import outputs, results, tasks
from activities.models import Activity
from activities.run_tokens import RunToken
from activities.states import LinkKind
from agents.contracts import Accepted, AgentRequest, AgentResult, Completed, Output
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem
from tests.engine import Engine, elsewhere
from tests.toolbox import (
    OUTPUT,
    Caller,
    at_work,
    caller_of,
    calls_of,
    child,
    children,
    count_of,
    not_woken,
    of,
    over,
    wakes_of,
    woken,
)

pytestmark = pytest.mark.usefixtures("one_at_a_time")

PART = {
    "name": "Look it up",
    "description": "Where do bees live?",
    "agent_role": "dev",
    "params": {"limit": 5},
    "blocking": True,
}
TASK = {"name": "Look it up", "human_role": "editor", "blocking": True}


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant)
    engine.agent.behaviour = lambda request: Accepted()
    return tenant


def waiting(engine: Engine, acme: Tenant, **part: Any) -> tuple[UUID, UUID]:
    """An activity that waits for its subtask, and the subtask, whose agent is at work."""
    parent, agent = at_work(engine, acme)
    subtask = agent.used("create_subtask", **{**PART, **part})
    engine.drain()
    return parent, subtask


def fail(engine: Engine, activity_id: UUID, *, retryable: bool = False) -> None:
    error = {"message": "cannot", "code": "broken", "retryable": retryable}
    assert caller_of(engine, activity_id).post("fail", {"error": error}).json()["accepted"] is True


def complete(engine: Engine, activity_id: UUID) -> None:
    assert caller_of(engine, activity_id).post("complete", OUTPUT).json()["accepted"] is True


def require_approval(acme: Tenant, activity_id: UUID) -> None:
    with tenant_scope(acme.pk):
        Activity.objects.filter(pk=activity_id).update(requires_approval=True)


# What a subtask is


def test_a_subtask_is_work_of_its_own_for_its_parents_deliverable_and_priority(
    engine: Engine, acme: Tenant
) -> None:
    parent, agent = at_work(engine, acme, priority=5)

    agent.used("create_subtask", **PART)

    part = child(acme, parent, LinkKind.SUBTASK)
    assert (part.name, part.description, part.agent_role, part.params) == (
        "Look it up", "Where do bees live?", "dev", {"limit": 5},
    )  # fmt: skip
    assert (part.priority, part.metadata, part.status) == (5, {"blocking": True}, "created")
    engine.drain()
    (call,) = calls_of(engine, part.pk)
    assert (call.wake_reason, call.params, call.agent_role) == ("new_task", {"limit": 5}, "dev")


def test_while_a_subtask_blocks_its_parent_holds_no_slot(engine: Engine, acme: Tenant) -> None:
    engine.serve(acme, "qa", max_concurrency=1)
    parent, agent = at_work(engine, acme)
    (behind,) = engine.submit(acme)

    agent.used("create_subtask", **PART)
    engine.drain()

    assert (engine.status(acme, parent), engine.status(acme, behind)) == ("awaiting_subtask", "in_progress")


def test_a_subtask_that_does_not_block_leaves_its_parent_at_work(engine: Engine, acme: Tenant) -> None:
    parent, agent = at_work(engine, acme)

    answer = agent.use("create_subtask", **{**PART, "blocking": False}).json()
    engine.drain()
    complete(engine, UUID(answer["id"]))

    assert (answer["stop"], answer["status"]) == (False, "in_progress")
    assert not_woken(engine, parent)
    assert engine.get(acme, UUID(answer["id"])).output_ref is not None
    assert agent.post("complete", OUTPUT).json()["accepted"] is True
    assert engine.status(acme, parent) == "done"


@pytest.mark.parametrize("end", [complete, fail])
def test_the_end_of_one_that_does_not_block_is_not_taken_for_the_one_that_does(
    engine: Engine, acme: Tenant, end: Callable[[Engine, UUID], None]
) -> None:
    parent, agent = at_work(engine, acme)
    idle = agent.used("create_subtask", **{**PART, "blocking": False})
    subtask = agent.used("create_subtask", **PART)
    engine.drain()

    end(engine, idle)

    assert not_woken(engine, parent)
    assert engine.status(acme, parent) == "awaiting_subtask"
    complete(engine, subtask)
    assert woken(engine, parent).wakes[0]["subtask"] == str(subtask)


# However it ends, the parent wakes once and learns how


def test_the_parent_goes_on_with_what_its_subtask_produced(engine: Engine, acme: Tenant) -> None:
    parent, subtask = waiting(engine, acme)

    complete(engine, subtask)

    told = woken(engine, parent)
    assert (told.wake_reason, told.attempt) == ("subtask_completed", 1)
    (wake,) = told.wakes
    produced = engine.get(acme, subtask).output_ref
    assert wake == {
        "reason": "subtask_completed", "subtask": str(subtask), "subtask_name": "Look it up", "subtask_outcome": "done",
        "subtask_output_ref": str(produced), "subtask_error": None, "subtask_notes": None, "subtask_ended_by": str(subtask),
    }  # fmt: skip
    stored = outputs.read(acme.pk, UUID(wake["subtask_output_ref"]))
    assert stored is not None
    assert stored.content == "# Bees"
    job = caller_of(engine, parent).job().json()
    assert (job["wake_reason"], job["subtask_name"], job["subtask_output_ref"]) == (
        "subtask_completed", "Look it up", str(produced),
    )  # fmt: skip
    complete(engine, parent)
    assert engine.status(acme, parent) == "done"


def test_a_worker_that_gets_the_result_itself_wakes_the_parent_too(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = lambda request: (
        Completed(Output("found")) if request.agent_role == "dev" else Accepted()
    )
    parent, agent = at_work(engine, acme)
    agent.used("create_subtask", **PART)

    assert woken(engine, parent).wakes[0]["subtask_outcome"] == "done"


def test_a_persons_part_wakes_with_what_the_person_wrote(api: Any, engine: Engine, acme: Tenant) -> None:
    parent, agent = at_work(engine, acme)
    task = agent.used("create_subtask", **TASK)
    client = api("reviewer", name="Ann")
    assert str(task) in [item["id"] for item in client.get("/api/v1/inbox/").json()["results"]]

    client.post(of(task, "start"))
    client.post(of(task, "complete"), {"output": {"content": "In hives."}, "note": "Sure."})

    (wake,) = woken(engine, parent).wakes
    assert (wake["subtask_outcome"], wake["subtask_notes"]) == ("done", "Sure.")
    stored = outputs.read(acme.pk, UUID(wake["subtask_output_ref"]))
    assert stored is not None
    assert stored.content == "In hives."


def failed(engine: Engine, acme: Tenant, subtask: UUID) -> None:
    fail(engine, subtask)


def exhausted(engine: Engine, acme: Tenant, subtask: UUID) -> None:
    for _ in range(2):
        fail(engine, subtask, retryable=True)
        engine.make_due(acme)
        engine.drain()
    fail(engine, subtask, retryable=True)


def lost_three_times(engine: Engine, acme: Tenant, subtask: UUID) -> None:
    for _ in range(3):
        run = engine.runs(acme, subtask)[-1]
        results.stalled(RunToken(acme.pk, subtask, run.pk, run.fence))
        engine.drain()


@pytest.mark.parametrize(
    ("end", "code"), [(failed, "broken"), (exhausted, "broken"), (lost_three_times, "stalled")]
)
def test_a_subtask_that_fails_for_good_wakes_its_parent_with_the_error(
    engine: Engine, acme: Tenant, end: Callable[[Engine, Tenant, UUID], None], code: str
) -> None:
    parent, subtask = waiting(engine, acme)

    end(engine, acme, subtask)

    engine.drain()
    (_, told) = calls_of(engine, parent)
    (wake,) = told.wakes
    assert (wake["subtask_outcome"], wake["subtask_error"]["code"]) == ("failed", code)
    assert wake["subtask_output_ref"] is None


def test_a_subtask_that_is_tried_again_by_itself_wakes_nobody_yet(engine: Engine, acme: Tenant) -> None:
    parent, subtask = waiting(engine, acme)

    fail(engine, subtask, retryable=True)

    assert not_woken(engine, parent)
    engine.make_due(acme)
    engine.drain()
    complete(engine, subtask)
    assert woken(engine, parent).wakes[0]["subtask_outcome"] == "done"


def test_a_subtask_that_is_cancelled_wakes_its_parent_with_the_reason(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    parent, subtask = waiting(engine, acme)

    api("operator").post(of(subtask, "cancel"), {"reason": "Too dear."})

    (wake,) = woken(engine, parent).wakes
    assert (wake["subtask_outcome"], wake["subtask_notes"]) == ("cancelled", "Too dear.")


def test_a_subtask_with_a_revision_answers_once_and_by_its_revision(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    parent, subtask = waiting(engine, acme)
    require_approval(acme, subtask)
    complete(engine, subtask)
    client = api("reviewer")

    client.post(of(subtask, "reject"), {"notes": "Shorter."})
    assert not_woken(engine, parent)
    revision = child(acme, subtask, LinkKind.REVISION_OF).pk
    complete(engine, revision)
    assert not_woken(engine, parent)
    client.post(of(revision, "approve"))

    (wake,) = woken(engine, parent).wakes
    assert (wake["subtask"], wake["subtask_name"], wake["subtask_outcome"]) == (
        str(subtask),
        "Look it up",
        "approved",
    )
    assert (wake["subtask_output_ref"], wake["subtask_ended_by"]) == (
        str(engine.get(acme, revision).output_ref), str(revision),
    )  # fmt: skip


def test_a_subtask_that_is_rejected_for_the_last_time_wakes_with_the_notes(
    api: Any, engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_MAX_ROUNDS = 1
    parent, subtask = waiting(engine, acme)
    require_approval(acme, subtask)
    complete(engine, subtask)

    api("reviewer").post(of(subtask, "reject"), {"notes": "No."})

    (wake,) = woken(engine, parent).wakes
    assert (wake["subtask_outcome"], wake["subtask_notes"]) == ("rejected", "No.")


@pytest.mark.parametrize("by", ["operator", "agent"])
def test_a_subtask_that_is_handed_to_another_agent_still_answers(
    api: Any, engine: Engine, acme: Tenant, by: str
) -> None:
    parent, subtask = waiting(engine, acme)
    body = {"agent_role": "seo", "reason": "Yours."}

    if by == "operator":
        heir = UUID(api("operator").post(of(subtask, "reassign"), body).json()["id"])
    else:
        heir = caller_of(engine, subtask).used("reassign_task", **body)
    assert not_woken(engine, parent)
    complete(engine, heir)

    (wake,) = woken(engine, parent).wakes
    assert (wake["subtask"], wake["subtask_outcome"], wake["subtask_ended_by"]) == (
        str(subtask),
        "done",
        str(heir),
    )


@pytest.mark.parametrize(
    ("verb", "outcome"), [("complete", "done"), ("approve", "approved"), ("reject", "rejected")]
)
def test_a_subtask_that_a_person_takes_over_answers_by_that_person(
    api: Any, engine: Engine, acme: Tenant, verb: str, outcome: str
) -> None:
    parent, subtask = waiting(engine, acme)
    client = api("operator")
    heir = client.post(of(subtask, "reassign"), {"human_role": "editor", "reason": "Tricky."}).json()["id"]
    bodies = {
        "complete": {"output": {"content": "By hand."}},
        "approve": {},
        "reject": {"notes": "Cannot be done."},
    }

    assert client.post(of(heir, verb), bodies[verb]).status_code == 200

    (wake,) = woken(engine, parent).wakes
    assert (wake["subtask_outcome"], wake["subtask"]) == (outcome, str(subtask))
    assert (wake["subtask_output_ref"] is not None) == (verb == "complete")


def test_a_subtask_that_is_handed_on_three_times_and_revised_answers_once(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    parent, subtask = waiting(engine, acme)
    client, current = api("operator"), subtask
    require_approval(acme, subtask)
    for role in ("seo", "qa", "dev"):
        body = {"agent_role": role, "reason": "Next."}
        current = UUID(client.post(of(current, "reassign"), body).json()["id"])
    engine.drain()
    complete(engine, current)
    client.post(of(current, "reject"), {"notes": "Again."})
    revision = child(acme, current, LinkKind.REVISION_OF).pk
    engine.drain()
    complete(engine, revision)

    client.post(of(revision, "approve"))

    assert woken(engine, parent).wakes[0]["subtask_outcome"] == "approved"
    assert len(wakes_of(acme, parent)) == 2


# An end that nobody waits for any more


def test_a_failed_subtask_that_is_tried_again_does_not_wake_a_parent_that_went_on(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    parent, subtask = waiting(engine, acme)
    fail(engine, subtask)
    woken(engine, parent)

    api("operator").post(of(subtask, "retry"))
    engine.drain()
    complete(engine, subtask)

    assert engine.status(acme, subtask) == "done"
    assert not_woken(engine, parent)
    assert caller_of(engine, parent).post("complete", OUTPUT).json()["accepted"] is True


def test_a_failed_subtask_that_is_tried_again_is_not_taken_for_the_next_one(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    parent, first = waiting(engine, acme)
    fail(engine, first)
    woken(engine, parent)
    second = caller_of(engine, parent).used("create_subtask", **{**PART, "name": "Ask somebody"})
    api("operator").post(of(first, "retry"))
    engine.drain()

    complete(engine, first)
    assert not_woken(engine, parent)
    assert engine.status(acme, parent) == "awaiting_subtask"
    complete(engine, second)

    assert woken(engine, parent).wakes[0]["subtask_name"] == "Ask somebody"


def test_an_end_that_is_told_twice_wakes_once(engine: Engine, acme: Tenant) -> None:
    parent, agent = at_work(engine, acme)
    subtask = agent.used("create_subtask", **PART)
    message = engine.take()
    assert message is not None
    tasks.run(**message)
    tasks.run(**message)
    assert len(calls_of(engine, subtask)) == 1

    for _ in range(3):
        caller_of(engine, subtask).post("complete", OUTPUT)

    woken(engine, parent)
    assert len(wakes_of(acme, parent)) == 2


def test_a_subtask_that_ends_during_its_parents_call_wakes_it_once_and_after_the_call(
    engine: Engine, acme: Tenant
) -> None:
    ready: list[int] = []

    def behaviour(request: AgentRequest) -> AgentResult:
        if request.wake_reason == "new_task" and request.agent_role == "qa":
            subtask = elsewhere(lambda: Caller(request).used("create_subtask", **PART))
            elsewhere(engine.deliver)
            elsewhere(lambda: complete(engine, subtask))
            ready.append(engine.messages())
        return Accepted()

    engine.agent.behaviour = behaviour
    (parent,) = engine.submit(acme)
    engine.deliver()

    assert (ready, len(calls_of(engine, parent))) == ([0], 1)
    assert woken(engine, parent).wake_reason == "subtask_completed"


# Ending the parent ends the tree


def test_cancelling_the_parent_cancels_everything_that_was_asked_for_its_sake(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    parent, agent = at_work(engine, acme)
    idle = agent.used("create_subtask", **{**PART, "blocking": False, "name": "idle"})
    task = agent.used("create_subtask", **{**TASK, "blocking": False})
    subtask = agent.used("create_subtask", **PART)
    engine.drain()
    below = caller_of(engine, subtask).used("create_subtask", **{**PART, "agent_role": "seo"})
    engine.drain()
    resolution = caller_of(engine, below).used("report_blocker", type="x", message="y")
    worker = caller_of(engine, idle)

    api("operator").post(of(parent, "cancel"), {"reason": "Enough."})

    for one in (idle, task, subtask, below, resolution):
        assert (engine.status(acme, one), engine.get(acme, one).cancel_reason) == ("cancelled", "obsolete")
    assert worker.post("heartbeat").json()["stop"] is True
    over(worker.post("complete", OUTPUT))
    assert engine.drain() == 0


def test_cancelling_the_parent_reaches_heirs_and_revisions_and_what_ended_parts_had_asked_for(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    client = api("operator")
    parent, agent = at_work(engine, acme)
    handed_on, revised, ended = (
        agent.used("create_subtask", **{**PART, "name": name, "blocking": False}) for name in ("a", "b", "c")
    )
    engine.drain()
    heir = UUID(client.post(of(handed_on, "reassign"), {"agent_role": "seo", "reason": "x"}).json()["id"])
    require_approval(acme, revised)
    complete(engine, revised)
    client.post(of(revised, "reject"), {"notes": "x"})
    revision = child(acme, revised, LinkKind.REVISION_OF).pk
    left = caller_of(engine, ended).used("create_subtask", **{**PART, "blocking": False})
    complete(engine, ended)
    engine.drain()

    client.post(of(parent, "cancel"))

    assert [engine.status(acme, one) for one in (heir, revision, left)] == ["cancelled"] * 3
    assert [engine.status(acme, one) for one in (handed_on, revised, ended)] == [
        "reassigned",
        "rejected",
        "done",
    ]


def test_slots_of_cancelled_subtasks_are_free_again(api: Any, engine: Engine, acme: Tenant) -> None:
    engine.serve(acme, "dev", max_concurrency=1)
    parent, _ = waiting(engine, acme)
    (behind,) = engine.submit(acme, "dev")
    assert engine.drain() == 0

    api("operator").post(of(parent, "cancel"))
    engine.drain()

    assert engine.status(acme, behind) == "in_progress"


# What bounds a tree


def test_subtasks_are_nested_three_deep_and_not_deeper(engine: Engine, acme: Tenant) -> None:
    current, agent = at_work(engine, acme)
    for role in ("dev", "seo", "qa"):
        current = agent.used("create_subtask", **{**PART, "agent_role": role})
        engine.drain()
        agent = caller_of(engine, current)

    refused = problem(agent.use("create_subtask", **PART), 429, "quota_exceeded")

    assert refused["quota"] == "depth"
    assert (engine.status(acme, current), count_of(acme)) == ("in_progress", 4)


def test_an_heir_is_as_deep_as_what_it_replaces(
    api: Any, engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_SUBTASK_DEPTH = 1
    _, subtask = waiting(engine, acme)
    heir = caller_of(engine, subtask).used("reassign_task", agent_role="seo", reason="x")
    engine.drain()

    problem(caller_of(engine, heir).use("create_subtask", **PART), 429, "quota_exceeded")


def test_an_activity_has_five_subtasks_and_not_more(engine: Engine, acme: Tenant) -> None:
    parent, agent = at_work(engine, acme)
    for number in range(5):
        agent.used("create_subtask", **{**PART, "name": str(number), "blocking": False})

    refused = problem(agent.use("create_subtask", **PART), 429, "quota_exceeded")

    assert refused["quota"] == "subtasks"
    assert (engine.status(acme, parent), count_of(acme)) == ("in_progress", 6)


@pytest.mark.parametrize(
    "more", [("create_subtask", PART), ("reassign_task", {"agent_role": "seo", "reason": "x"})]
)
def test_a_full_tree_takes_no_more_members(
    engine: Engine, acme: Tenant, settings: Any, more: tuple[str, dict[str, Any]]
) -> None:
    settings.ORCHESTRATOR_ACTIVITIES_PER_TREE = 3
    _, agent = at_work(engine, acme)
    for number in range(2):
        agent.used("create_subtask", **{**PART, "name": str(number), "blocking": False})
    engine.drain()

    refused = problem(Caller(engine.agent.calls[-1]).use(more[0], **more[1]), 429, "quota_exceeded")

    assert (refused["quota"], count_of(acme)) == ("tree", 3)


def test_a_bomb_of_agents_that_ask_for_agents_leaves_a_hundred_activities(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    """Each asks for as much as it can get, and then hands its work on, as long as it is let."""
    settings.ORCHESTRATOR_SUBTASK_DEPTH = 100
    roles = ("qa", "dev", "seo")

    def greedy(request: AgentRequest) -> AgentResult:
        agent = Caller(request)
        for number in range(6):
            role = roles[number % 3]
            agent.use("create_subtask", name=f"more {number}", agent_role=role, blocking=False)
        agent.use(
            "reassign_task", agent_role=roles[(roles.index(request.agent_role) + 1) % 3], reason="go on"
        )
        return Completed(Output("boom"))

    engine.agent.behaviour = greedy
    (root,) = engine.submit(acme)
    engine.drain()

    assert count_of(acme) == 100
    assert engine.status(acme, root) in ("done", "reassigned")
    assert len(children(acme, root, LinkKind.SUBTASK)) == 5
