"""The real engine that the machine drives: through its public functions, on real servers, one action after the other.

It also simulates what no function does: a process that dies, a message that is delivered again, a Redis that is wiped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from unittest import mock
from uuid import UUID

from django.db.models.functions import Now

from activities import activity_tree, dead_letters, outbox, relay, rescheduling, run_tokens, tasks
from activities import budgets as activity_budgets
from activities.admission import Exchange, limits, rebuilding, scripts
from activities.decision_rules import DecisionRules, Later, Voter
from activities.execution import agent_tools, claims, reports, results
from activities.human_tasks import approvals, deadlines
from activities.human_tasks.approvals import NewApproval
from activities.maintenance import recovery
from activities.models import Activity, DeadLetter, Wake
from activities.run_tokens import RunToken
from activities.submission import NewActivity, submit
from agents import configuration
from agents.contracts import AgentRequest, Completed, Output, Usage
from agents.exceptions import AgentRateLimited, PermanentAgentError, RetryableAgentError
from agents.models import Agent, AgentConfig
from pipelines import submission, versions
from pipelines.models import Pipeline
from tenants import money, pausing
from tenants.context import OWNER, system_scope, tenant_scope
from tenants.models import PauseKind, Tenant
from tenants.redis import client
from tenants.sql import Statement
from tests.engine import Engine, in_another_thread
from tests.state_machine.flow import PIPELINES
from tests.state_machine.tasks import Rules

LONG = 300.0  # seconds of delays, which end when the machine says so
ROLES = ("qa", "dev", "seo")
# The other role has no budget, because steps under a budget never follow immediately.
BUDGETED = (
    "dev",
    "seo",
)
FAULTS: dict[str, Callable[[], Exception]] = {
    "again": lambda: RetryableAgentError("not now", code="again"),
    "never": lambda: PermanentAgentError("not ever", code="never"),
    "limited": lambda: AgentRateLimited("too fast", retry_after=LONG),
    "held": lambda: _held(AgentRateLimited("too fast", retry_after=LONG)),
}
#: RATE allows one start during the test; FULL_RATE any number, while the machine lets time pass.
RATE, FULL_RATE = {"per_second": 0.001, "capacity": 1}, {"per_second": 1_000_000, "capacity": 1}
#: The roles that call a model provider, and the schedule of all scheduled work.
OF_PROVIDER, SCHEDULE = ("seo",), UUID(int=7)
#: The pauses that the machine sets: (kind, name).
PAUSES = (
    *((whose, role) for whose in ("role", "role of all") for role in ROLES),
    *(("pipeline", key) for key in sorted(PIPELINES)),
    ("tenant", ""),
    ("provider", ""),
    ("schedule", ""),
)
#: More than can run at once.
NO_CAP = 100
#: What a run reports: nearly nothing of the budgets while there is money, and more than they have while it is gone.
COSTS = Usage(input_tokens=1, cost_usd=Decimal(1))

#: Ends the delays of retries, which are stored in the histories of their activities.
_PASS_RETRY_TIMES = Statement(
    name="pass_retry_times",
    text="""
    UPDATE activities_activityevent SET detail = jsonb_set(detail, '{due_at}', to_jsonb(now()))
    WHERE tenant_id = %(tenant)s AND verb = 'release' AND detail ->> 'due_at' IS NOT NULL
    RETURNING id
    """,
)

Message = dict[str, str]
Behaviour = Callable[[AgentRequest], Any]


class Crash(Exception):
    """The process died before the commit."""


class WorkerDied(BaseException):
    """The process died while it waited for the agent. No handler catches this."""


@dataclass
class World:
    """One tenant with its work."""

    engine: Engine
    tenant: Tenant
    messages: list[Message] = field(default_factory=list)  # taken from their queues, not delivered yet
    delivered: list[Message] = field(default_factory=list)
    budgets: list[UUID] = field(default_factory=list)
    audit: rebuilding.SlotAudit = field(default_factory=rebuilding.SlotAudit)
    #: Work that admission does not know of, and work that it wrongly takes for waiting, because a process died before notifying it.
    unoffered: set[UUID] = field(default_factory=set)
    unwithdrawn: set[UUID] = field(default_factory=set)

    def __post_init__(self) -> None:
        slow = {"strategy": "fixed", "base_seconds": LONG, "jitter": 0.0}
        self.engine.serve(self.tenant, retry=slow, max_concurrency=NO_CAP)
        # The test replaces this adapter by the inline one.
        self.engine.serve(self.tenant, *OF_PROVIDER, adapter="anthropic")
        for role in BUDGETED:
            budget = {
                "name": role,
                "agent_role": role,
                "cap": Decimal(1_000_000),
                "estimate": Decimal("0.01"),
            }
            self.budgets.append(money.create_budget(self.tenant.pk, budget).pk)
        configuration.forget()
        for key, steps in PIPELINES.items():
            versions.save(self.tenant.pk, {"key": key, "name": key, "steps": steps}, actor="test")

    # Fates: what survives of a step.

    @contextmanager
    def crashing(self) -> Iterator[None]:
        """Roll back the block, as if the process died before the commit."""
        try:
            with tenant_scope(self.tenant.pk):
                yield
                raise Crash
        except Crash:
            pass

    @contextmanager
    def forgetful(self) -> Iterator[None]:
        """Lose the notifications to admission, as if the process died right after the commit."""
        with relay.collecting() as lost:
            yield
        self.unoffered |= {offer.activity_id for offer in lost.offers}
        self.unoffered |= {release.activity_id for release in lost.releases}
        self.unwithdrawn |= set(lost.withdrawals)

    # Work comes in.

    def submit(self, **fields: Any) -> None:
        with tenant_scope(self.tenant.pk):
            submit([NewActivity(name="work", **fields)], actor="test")

    def start(self, key: str) -> UUID:
        return submission.start_run(self.tenant.pk, key, submission.NewRun(), actor="test").pk

    # Messages and agents.

    def collect(self) -> list[Message]:
        while (message := self.engine.take()) is not None:
            self.messages.append(message)
        return self.messages

    def slots(self) -> list[scripts.Slot]:
        """Return all slots that are granted and not released, after admission has processed everything so far."""
        relay.flush()
        return scripts.audit(withdraw_orphans=False)

    def is_granted(self, message: Message) -> bool:
        """Whether the message still has its slots, so that its worker may try to claim."""
        mine = (UUID(message["activity"]), message["grant"])
        return any(slot[:2] == mine and not slot.started for slot in self.slots())

    def deliver(self, message: Message, behaviour: Behaviour) -> None:
        self.engine.agent.behaviour = in_other_process(behaviour)
        self.delivered.append(message)
        try:
            tasks.run(**message)
        except WorkerDied:
            self.engine.replace_worker()

    @contextmanager
    def before_steps_begin(self, happen: Callable[[], object]) -> Iterator[None]:
        """Within the block, let something happen elsewhere when a step that follows has its slot but is not committed yet."""
        begin = claims.begin_claims

        def begin_afterwards(held: Any, created: Any = None) -> Any:
            if created is not None:
                in_another_thread(happen)
            return begin(held, created)

        with mock.patch.object(claims, "begin_claims", begin_afterwards):
            yield

    def token_of(self, request: AgentRequest) -> RunToken:
        token = run_tokens.read(request.callback.token)
        assert token is not None
        return token

    # Agents report.

    def complete(self, token: RunToken, output: str) -> reports.Receipt:
        return reports.complete(token, Completed(Output(content=output)), actor="test")

    def fail(self, token: RunToken, kind: str) -> reports.Receipt:
        return reports.fail(token, FAULTS[kind](), actor="test")  # type: ignore[arg-type]

    def spend(self, token: RunToken) -> str | None:
        """Report what the run has cost so far. Returns why the agent must stop, or None."""
        return reports.beat(token, progress=None, usage=COSTS)

    def lose(self, token: RunToken) -> None:
        results.record_stalled(token)

    def call(self, token: RunToken, tool: str, arguments: dict[str, Any]) -> agent_tools.Answer:
        return agent_tools.perform(token, tool, arguments)

    # People and operators. The machine itself makes what is one call of the engine.

    def ask_over(self, about: Sequence[UUID], rules: Rules | None) -> None:
        with tenant_scope(self.tenant.pk):
            new = NewApproval(
                type="brand_direction", title="Which way?", rules=decision_rules(rules) or DecisionRules()
            )
            question = approvals.open_approval(self.tenant.pk, new, actor="people", identity="people")
            linked = activity_tree.lock(self.tenant.pk, about)
            approvals.link(self.tenant.pk, question, list(linked.values()), actor="people")

    def replay(self) -> None:
        with tenant_scope(self.tenant.pk):
            dead_letters.replay(self.tenant.pk, DeadLetter.objects.for_tenant(self.tenant.pk), actor="people")

    def dismiss(self) -> None:
        with tenant_scope(self.tenant.pk):
            dead_letters.dismiss(
                self.tenant.pk, DeadLetter.objects.for_tenant(self.tenant.pk), actor="people", reason="enough"
            )

    # Time and upkeep.

    def time_passes(self) -> None:
        deadlines.pass_due(datetime.now(UTC) + timedelta(days=1))

    def delays_end(self) -> None:
        """End all delays, except the wait for a budget."""
        with tenant_scope(self.tenant.pk):
            Activity.objects.filter(not_before__gt=Now()).update(not_before=Now())
            delayed = Wake.objects.filter(state="pending", due_at__isnull=False).exclude(
                cause=activity_budgets.CAUSE
            )
            delayed.update(due_at=Now())
        # Only the owner may change histories.
        _PASS_RETRY_TIMES.run({"tenant": self.tenant.pk}, using=OWNER)
        self.engine.end_holds()
        outbox.promote()
        relay.flush()

    def expire(self, activity_id: UUID) -> None:
        """Let the time pass by which the activity should have started. Running activities do not expire."""
        with tenant_scope(self.tenant.pk):
            activity = Activity.objects.filter(pk=activity_id)
            activity.update(expires_at=Now())
        recovery.expire_stale()
        with tenant_scope(self.tenant.pk):
            activity.update(expires_at=None)

    def money_is_gone(self) -> None:
        self._cap("0.001")

    def money_comes(self) -> None:
        self._cap("1000000")
        activity_budgets.release_where_room()
        outbox.promote()
        relay.flush()

    def _cap(self, amount: str) -> None:
        for budget in self.budgets:
            money.change_budget(self.tenant.pk, budget, {"cap": Decimal(amount)})

    def pause(self, whose: str, of: str, paused: bool) -> None:
        """Set or lift a pause."""
        self._switch(whose, of, paused)
        self.limits_change()

    def _switch(self, whose: str, of: str, paused: bool) -> None:
        with system_scope():
            if whose == "tenant":
                Tenant.objects.filter(pk=self.tenant.pk).update(paused=paused)
            elif whose == "role":
                AgentConfig.objects.filter(agent_id=of).update(paused=paused)
            elif whose == "role of all":
                Agent.objects.filter(role=of).update(paused=paused)
        if whose in ("pipeline", "provider", "schedule"):
            with tenant_scope(self.tenant.pk):
                subject: UUID | str = {"provider": "anthropic", "schedule": SCHEDULE}.get(whose, "")  # type: ignore[call-overload]
                subject = subject or Pipeline.objects.get(key=of).pk
                pausing.switch_part(
                    self.tenant.pk, PauseKind(whose), subject, name=of or whose, paused=paused, actor="people"
                )

    def resume_all(self) -> None:
        for whose, of in PAUSES:
            self._switch(whose, of, False)
        with tenant_scope(self.tenant.pk):
            AgentConfig.objects.update(max_concurrency=NO_CAP)
        self.limits_change()

    def cap(self, role: str, cap: int | None) -> None:
        with tenant_scope(self.tenant.pk):
            AgentConfig.objects.filter(agent_id=role).update(max_concurrency=cap or NO_CAP)
        self.limits_change()

    def reschedule(self, activity_id: UUID, **fields: Any) -> None:
        """None leaves a value unchanged; for dates True sets one and False removes it."""
        later = datetime.now(UTC) + timedelta(hours=12)
        changes = {
            name: value if name == "priority" else later if value else None
            for name, value in fields.items()
            if value is not None
        }
        rescheduling.reschedule(self.tenant.pk, activity_id, changes, actor="people")

    def limit_rate(self, role: str, rate: dict[str, float]) -> None:
        with tenant_scope(self.tenant.pk):
            AgentConfig.objects.filter(agent_id=role).update(rate=rate)
        self.limits_change()

    def limits_change(self) -> None:
        """Do what the leader does each tick."""
        configuration.forget()
        limits.refresh()
        relay.release_and_acquire(Exchange())

    def recover(self) -> None:
        """Do what the leader does, twice, without waiting."""
        limits.refresh()
        outbox.promote()
        recovery.reclaim_runs_of_ended_workers()
        for _ in range(2):  # because only differences that are seen twice are repaired
            release, _ = self.audit.compare()
            relay.hand_over(release)
            relay.flush()
        recovery.offer_forgotten()
        relay.flush()
        relay.release_and_acquire(Exchange())
        self.unoffered.clear()

    def wipe_redis(self) -> None:
        """Delete everything in Redis, including undelivered messages, and rebuild admission."""
        relay.flush()
        client().flushdb()
        rebuilding.rebuild()
        self.unwithdrawn.clear()
        self.unoffered.clear()
        relay.release_and_acquire(Exchange())


def _held(error: AgentRateLimited) -> AgentRateLimited:
    error.held_by = "anthropic"
    return error


def in_other_process(behaviour: Behaviour) -> Behaviour:
    """Let actions during a call reach admission as from another process, even if the worker dies."""

    def behave(request: AgentRequest) -> Any:
        token = relay._collected.set(None)
        try:
            return behaviour(request)
        finally:
            relay._collected.reset(token)

    return behave


def decision_rules(rules: Rules | None) -> DecisionRules | None:
    if rules is None:
        return None
    return DecisionRules(
        quorum=rules.quorum,
        voters=rules.voters,
        on_timeout=rules.on_timeout,
        due_seconds=2 * LONG if rules.on_timeout else None,
        reminders=(Later(LONG),) if rules.on_timeout else (),
        asked_by=f"user:{rules.asked_by}" if rules.asked_by else "",
        self_approval=rules.asked_by is None,
    )


def stored_rules(rules: Rules | None) -> Any:
    stored = decision_rules(rules)
    return stored.as_json() if stored else None


def voter(name: str) -> Voter:
    return Voter(name, identity=f"user:{name}")
