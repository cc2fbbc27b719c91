"""A change of instructions, model or skills ends the session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from activities import sessions
from agents import configuration
from agents.contracts import Accepted, AgentRequest, AgentResult, Completed, Output
from agents.models import AgentConfig, Skill
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import RESULT, AgentClient
from tests.engine import Engine, in_another_thread
from tests.integration.sessions.conversations import REPORT, history, naming, run

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def configure(tenant: Tenant, **fields: Any) -> None:
    with tenant_scope(tenant.pk):
        AgentConfig.objects.filter(agent_id="qa").update(**fields)
    configuration.forget()


def add_skill(tenant: Tenant, **fields: Any) -> None:
    with tenant_scope(tenant.pk):
        Skill.objects.create(
            **{"tenant": tenant, "key": "tone", "name": "Tone", "content": "Be kind.", **fields}
        )
    configuration.forget()


CHANGES: dict[str, Callable[[Tenant], None]] = {
    "instructions": lambda tenant: configure(tenant, instructions="You test thoroughly."),
    "model": lambda tenant: configure(tenant, model="larger"),
    "a new skill": add_skill,
    "a new context": lambda tenant: add_skill(tenant, kind="context"),
    "a skill for this role": lambda tenant: add_skill(tenant, roles=["dev", "qa"]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_the_briefing_starts_a_new_session(
    engine: Engine, acme: Tenant, change: Callable[[Tenant], None]
) -> None:
    engine.agent.behaviour = naming("s-1", "s-1", "s-2")
    run(engine, acme)
    unchanged = run(engine, acme)

    change(acme)
    changed = run(engine, acme)

    assert (unchanged.session_id, changed.session_id) == ("s-1", None)
    assert history(acme) == [("s-1", "instructions_changed"), ("s-2", "")]
    assert run(engine, acme).session_id == "s-2"


@pytest.mark.parametrize(
    "change",
    [
        lambda tenant: configure(tenant, timeout_seconds=90, max_concurrency=3),
        lambda tenant: add_skill(tenant, roles=["dev"]),
        lambda tenant: add_skill(tenant, enabled=False),
    ],
    ids=["limits", "a skill of others", "a skill that is off"],
)
def test_other_changes_keep_the_session(
    engine: Engine, acme: Tenant, change: Callable[[Tenant], None]
) -> None:
    engine.agent.behaviour = naming("s-1")
    run(engine, acme)

    change(acme)

    assert run(engine, acme).session_id == "s-1"


@pytest.mark.parametrize("change", ["a new version", "recreated", "removed"])
def test_a_changed_recreated_or_removed_skill_starts_a_new_session(
    engine: Engine, acme: Tenant, change: str
) -> None:
    add_skill(acme)
    engine.agent.behaviour = naming("s-1", "s-2")
    run(engine, acme)

    with tenant_scope(acme.pk):
        if change == "a new version":
            Skill.objects.update(version=2)
        else:
            Skill.objects.all().delete()
    if change == "recreated":
        add_skill(acme, content="Be brief.")  # because it has version 1 like the deleted one

    assert run(engine, acme).session_id is None


def test_instructions_that_change_during_a_run_end_its_session(engine: Engine, acme: Tenant) -> None:
    def change_meanwhile(request: AgentRequest) -> AgentResult:
        in_another_thread(lambda: configure(acme, instructions="You are something else."))
        return Completed(Output("done"), session_id="s-1")

    engine.agent.behaviour = change_meanwhile
    run(engine, acme)
    engine.agent.behaviour = naming("s-2")

    assert run(engine, acme).session_id is None
    assert history(acme) == [("s-1", "instructions_changed"), ("s-2", "")]


def test_instructions_that_change_before_the_callback_end_its_session(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    agent = AgentClient(run(engine, acme))

    configure(acme, instructions="You are something else.")
    agent.post("complete", {**RESULT, "session_id": "s-1"})

    assert run(engine, acme).session_id is None
    assert history(acme) == [("s-1", "instructions_changed")]


def test_a_run_with_an_ended_session_does_not_revive_it(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = naming("s-1")
    run(engine, acme)
    engine.agent.behaviour = lambda request: Accepted()
    agent = AgentClient(run(engine, acme))
    configure(acme, instructions="You are something else.")
    engine.agent.behaviour = naming("s-2")
    run(engine, acme)

    agent.post("heartbeat", {"session_id": "s-1"})
    agent.post("complete", {**RESULT, "session_id": "s-1"})

    assert history(acme) == [("s-1", "instructions_changed"), ("s-2", "")]


def test_an_agent_with_one_session_id_starts_again_under_it(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = naming("report-42")
    run(engine, acme)
    configure(acme, instructions="You are something else.")

    fresh = run(engine, acme)

    assert fresh.session_id is None
    assert history(acme) == [("report-42", "instructions_changed"), ("report-42", "")]
    assert run(engine, acme).session_id == "report-42"


def test_a_session_without_a_recorded_briefing_continues(engine: Engine, acme: Tenant) -> None:
    with tenant_scope(acme.pk):
        sessions.begin(acme.pk, REPORT, "qa", "s-old")
    engine.agent.behaviour = naming("s-old")
    adopted = run(engine, acme)
    configure(acme, instructions="You are something else.")

    assert adopted.session_id == "s-old"
    assert run(engine, acme).session_id is None
