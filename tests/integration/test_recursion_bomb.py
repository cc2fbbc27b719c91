"""A hijacked agent whose every copy asks for more copies: its tree stays small, and nobody else waits for it."""

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
from tests.engine import Engine
from tests.toolbox import Caller, count_of

# What is counted are activities and grants; hundreds of calls take their time on a busy machine.
pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.usefixtures("one_at_a_time")]

CALLS = 200
ROLES = ("qa", "dev", "seo")
MOST = 20  # activities of a tree


@pytest.fixture
def one_seat(database: None) -> Iterator[Engine]:
    """One run at a time, so that the order of the calls is the order of the grants."""
    running = Engine(list(ROLES), seats=1)
    yield running
    running.close()


class Bomb:
    """What every copy does: as many calls as its share, each in other words, and all refusals shrugged off."""

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
                self._ask(run, number)
            except ActivityError as refusal:
                kind = getattr(refusal, "problem_members", {}).get("quota", refusal.code)
                self.refused[kind] += 1
            except ValidationError:
                self.refused["invalid"] += 1
        return Completed(Output("boom"))

    def _ask(self, run: run_tokens.RunToken, number: int) -> None:
        role = ROLES[number % 3]
        if number % 10 == 9:
            agent_tools.receive_call(run, "reassign_task", {"agent_role": role, "reason": f"go on {number}"})
        else:
            body = {"name": f"more {number}", "agent_role": role, "blocking": False}
            agent_tools.receive_call(run, "create_subtask", body, key=f"{number}")


def test_ten_calls_of_each_copy_leave_no_more_activities_than_a_tree_may_have(
    engine: Engine, tenant: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_ACTIVITIES_PER_TREE = MOST
    settings.ORCHESTRATOR_SUBTASK_DEPTH = 50  # so that the bound of the tree is what stops it
    settings.ORCHESTRATOR_TOOL_BURST, settings.ORCHESTRATOR_TOOL_RATE = 7, 0.001
    engine.serve(tenant)
    bomb = Bomb(tenant, CALLS // MOST)
    engine.agent.behaviour = bomb

    engine.submit(tenant)
    engine.drain()
    while bomb.calls < CALLS:  # what was tried again, or woken, does it again
        engine.submit(tenant)
        with tenant_scope(tenant.pk):
            roots = Activity.objects.filter(parent_id=None).count()
        assert roots < 5, bomb.calls
        engine.drain()

    with tenant_scope(tenant.pk):
        trees = Activity.objects.filter(parent_id=None).count()
        assert ToolCall.objects.count() <= trees * MOST
    assert bomb.calls >= CALLS
    assert count_of(tenant) <= trees * MOST
    assert {"subtasks", "tree", "rate"} <= bomb.refused.keys(), bomb.refused


def test_the_same_over_http_for_a_sample_of_it(engine: Engine, tenant: Tenant, settings: Any) -> None:
    settings.ORCHESTRATOR_ACTIVITIES_PER_TREE = 10
    engine.serve(tenant)
    statuses: Counter[int] = Counter()

    def greedy(request: AgentRequest) -> AgentResult:
        agent = Caller(request)
        for number in range(8):
            answer = agent.use(
                "create_subtask", name=f"m{number}", agent_role=ROLES[number % 3], blocking=False
            )
            statuses[answer.status_code] += 1
        return Completed(Output("boom"))

    engine.agent.behaviour = greedy
    engine.submit(tenant)
    engine.drain()

    assert count_of(tenant) == 10
    assert statuses == {201: 9, 429: 10 * 8 - 9}


def test_who_hammers_at_the_door_is_refused_without_a_statement(
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


def test_another_tenant_waits_no_longer_than_its_fair_share_says(
    one_seat: Engine, tenant: Tenant, other_tenant: Tenant, settings: Any
) -> None:
    """Counted in grants: with one rival, whatever it piles up, the n-th of one's own comes among the first 2n."""
    settings.ORCHESTRATOR_ACTIVITIES_PER_TREE = 40
    for each in (tenant, other_tenant):
        one_seat.serve(each)
    bomb = Bomb(tenant, 6)
    one_seat.agent.behaviour = bomb
    one_seat.submit(tenant)
    for _ in range(6):  # by now many wait behind each other, and each brings more
        one_seat.deliver()
    with tenant_scope(tenant.pk):
        assert Activity.objects.filter(status="created").count() > 10
    before = len(one_seat.agent.calls)

    own = set(one_seat.submit(other_tenant, count=10))
    one_seat.drain()

    order = [call.activity_id for call in one_seat.agent.calls[before:]]
    places = [place for place, activity_id in enumerate(order, start=1) if activity_id in own]
    assert len(places) == 10
    # One grant may have been given before the others came.
    assert all(place <= 2 * number + 2 for number, place in enumerate(places, start=1)), places
