"""An agent whose every run creates subtasks for itself: its tree stays small, and other tenants get their share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from rest_framework.exceptions import ValidationError

from activities import run_tokens
from activities.exceptions import ActivityError, QuotaExceeded
from activities.execution import agent_tools
from activities.models import Activity, ToolCall
from agents.contracts import AgentRequest, AgentResult, Completed, Output
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import AgentClient, count_activities
from tests.engine import Engine

# Hundreds of calls take long on a busy machine; the tests count activities and grants.
pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.usefixtures("one_at_a_time")]

CALLS = 200
ROLES = ("qa", "dev", "seo")
TREE_LIMIT = 20  # activities of a tree


@pytest.fixture
def one_seat(database: None) -> Iterator[Engine]:
    """One run at a time, so that the order of the calls is the order of the grants."""
    running = Engine(list(ROLES), seats=1)
    yield running
    running.close()


class Bomb:
    """The behaviour of every copy: a number of different tool calls, ignoring all refusals."""

    def __init__(self, tenant: Tenant, calls_each: int) -> None:
        self.tenant, self.each = tenant, calls_each
        self.calls, self.refused = 0, Counter[str]()

    def __call__(self, request: AgentRequest) -> AgentResult:
        if request.tenant_id != self.tenant.pk:
            return Completed(Output("an honest result"))
        run = run_tokens.read(request.callback.token)
        assert run is not None
        for number in range(self.each):
            self.calls += 1
            try:
                self._call_tool(run, number)
            except ActivityError as refusal:
                kind = getattr(refusal, "problem_members", {}).get("quota", refusal.code)
                self.refused[kind] += 1
            except ValidationError:
                self.refused["invalid"] += 1
        return Completed(Output("boom"))

    def _call_tool(self, run: run_tokens.RunToken, number: int) -> None:
        role = ROLES[number % 3]
        if number % 10 == 9:
            agent_tools.receive_call(run, "reassign_task", {"agent_role": role, "reason": f"go on {number}"})
        else:
            body = {"name": f"more {number}", "agent_role": role, "blocking": False}
            agent_tools.receive_call(run, "create_subtask", body, key=f"{number}")


def test_many_calls_of_every_copy_create_at_most_the_limit_of_activities_per_tree(
    engine: Engine, tenant: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_ACTIVITIES_PER_TREE = TREE_LIMIT
    settings.ORCHESTRATOR_SUBTASK_DEPTH = 50  # so that the limit of the tree applies first
    settings.ORCHESTRATOR_TOOL_BURST, settings.ORCHESTRATOR_TOOL_RATE = 7, 0.001
    engine.serve(tenant)
    bomb = Bomb(tenant, CALLS // TREE_LIMIT)
    engine.agent.behaviour = bomb

    engine.submit(tenant)
    engine.drain()
    while bomb.calls < CALLS:  # runs that are retried or woken call again
        engine.submit(tenant)
        with tenant_scope(tenant.pk):
            roots = Activity.objects.filter(parent_id=None).count()
        assert roots < 5, bomb.calls
        engine.drain()

    with tenant_scope(tenant.pk):
        trees = Activity.objects.filter(parent_id=None).count()
        assert ToolCall.objects.count() <= trees * TREE_LIMIT
    assert bomb.calls >= CALLS
    assert count_activities(tenant) <= trees * TREE_LIMIT
    assert {"subtasks", "tree", "rate"} <= bomb.refused.keys(), bomb.refused


def test_the_limit_of_a_tree_applies_over_http(engine: Engine, tenant: Tenant, settings: Any) -> None:
    settings.ORCHESTRATOR_ACTIVITIES_PER_TREE = 10
    engine.serve(tenant)
    statuses: Counter[int] = Counter()

    def greedy(request: AgentRequest) -> AgentResult:
        agent = AgentClient(request)
        for number in range(3):
            answer = agent.use(
                "create_subtask", name=f"m{number}", agent_role=ROLES[number % 3], blocking=False
            )
            statuses[answer.status_code] += 1
        return Completed(Output("boom"))

    engine.agent.behaviour = greedy
    engine.submit(tenant)
    engine.drain()

    assert count_activities(tenant) == 10
    assert statuses == {201: 9, 429: 10 * 3 - 9}


def test_calls_above_the_rate_limit_are_refused_without_a_statement(
    engine: Engine, tenant: Tenant, settings: Any
) -> None:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    settings.ORCHESTRATOR_TOOL_BURST, settings.ORCHESTRATOR_TOOL_RATE = 3, 0.001
    engine.serve(tenant)
    counts: list[int] = []
    quotas: list[str] = []

    def hammer(request: AgentRequest) -> AgentResult:
        run = run_tokens.read(request.callback.token)
        assert run is not None
        for number in range(6):
            with CaptureQueriesContext(connection) as captured:
                try:
                    agent_tools.receive_call(
                        run, "create_subtask", {"name": f"{number}", "agent_role": "dev", "blocking": False}
                    )
                except QuotaExceeded as refusal:
                    quotas.append(refusal.problem_members["quota"])
            counts.append(len(captured))
        return Completed(Output("x"))

    engine.agent.behaviour = hammer
    engine.submit(tenant)
    engine.deliver()

    assert (counts[3:], quotas) == ([0, 0, 0], ["rate"] * 3)
    assert all(counts[:3])


def test_another_tenant_gets_every_second_grant_at_least(
    one_seat: Engine, tenant: Tenant, other_tenant: Tenant, settings: Any
) -> None:
    """With one rival, the n-th grant of a tenant is among the first 2n, however much the rival has waiting."""
    settings.ORCHESTRATOR_ACTIVITIES_PER_TREE = 40
    for each in (tenant, other_tenant):
        one_seat.serve(each)
    bomb = Bomb(tenant, 3)
    one_seat.agent.behaviour = bomb
    one_seat.submit(tenant)
    for _ in range(6):  # by now many are waiting, and each adds more
        one_seat.deliver()
    with tenant_scope(tenant.pk):
        assert Activity.objects.filter(status="created").count() > 10
    before = len(one_seat.agent.calls)

    own = set(one_seat.submit(other_tenant, count=10))
    for _ in range(22):
        one_seat.deliver()

    order = [call.activity_id for call in one_seat.agent.calls[before:]]
    places = [place for place, activity_id in enumerate(order, start=1) if activity_id in own]
    assert len(places) == 10
    # One grant may have been given before the other tenant submitted.
    assert all(place <= 2 * number + 2 for number, place in enumerate(places, start=1)), places
