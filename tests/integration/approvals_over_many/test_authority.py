"""Who may answer which question: random questions about random work, and attempts by everybody, compared with an oracle.

Agents, viewers and, where votes count, tokens without a person cannot answer. No answer changes another question. Work that several
questions hold starts after the last answer, and not before.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rest_framework.test import APIClient

from activities import cancellation
from activities.exceptions import TransitionRefused
from activities.human_tasks import deadlines
from activities.models import Activity, Deadline, Vote
from activities.states import LinkKind
from agents.contracts import Accepted, AgentRequest, AgentResult, Completed, Output
from tenants import clock, tokens
from tenants.context import tenant_scope
from tenants.models import Membership, Tenant
from tests.accepted_work import RESULT, AgentClient, accept_work, agent_of, calls_of
from tests.engine import Engine

pytestmark = pytest.mark.usefixtures("one_at_a_time")

EXAMPLES = 8
ACTIVITIES, APPROVALS, INBOX = "/api/v1/activities/", "/api/v1/approvals/", "/api/v1/inbox/"


@dataclass(frozen=True)
class Who:
    """Somebody who attempts an answer. A token without a person has none; agents and the deadline have no role."""

    role: str = ""
    person: str = ""
    human_roles: tuple[str, ...] = ()
    is_session: bool = False


WHO = {
    "ann": Who("admin", "ann", is_session=True),
    "ann's token": Who("admin", "ann"),
    "ann's other token": Who("operator", "ann"),
    "bob": Who("operator", "bob", is_session=True),
    "bob's token": Who("operator", "bob"),
    "cleo": Who("reviewer", "cleo", ("legal",), is_session=True),
    "cleo's token": Who("reviewer", "cleo", ("legal",)),
    "dan's token": Who("reviewer", "dan"),
    "eve": Who("viewer", "eve", is_session=True),
    "eve's token": Who("viewer", "eve"),
    "robot": Who("admin"),
    "small robot": Who("reviewer"),
    "agent": Who(),
    "deadline": Who(),
}
WRONG_ROUTE = 3  # an address of something else
REQUESTERS = ("ann", "ann's token", "bob", "bob's token", "robot")


@dataclass
class Question:
    """A question in the oracle with its answers so far. `about` names the work that it holds."""

    kind: str
    about: frozenset[str]
    requested_by: str = "robot"
    human_role: str = "reviewer"
    quorum: int = 1
    voters: int | None = None
    self_approval: bool | None = None
    on_timeout: str | None = None
    status: str = "open"
    votes: dict[str, str] = field(default_factory=dict)
    id: UUID | None = None
    work: UUID | None = None  # the work behind a gate

    # The oracle: plain rules, independent of the product's code.

    @property
    def is_voted_on(self) -> bool:
        return self.quorum > 1 or (self.voters or 1) > 1

    @property
    def requester_may_decide(self) -> bool:
        return not self.is_voted_on if self.self_approval is None else self.self_approval

    def may_decide(self, name: str) -> bool:
        who, requester = WHO[name], WHO[self.requested_by]
        if self.status != "open" or who.role not in ("reviewer", "operator", "admin"):
            return False
        if self.kind == "blocker":
            return True
        if (
            who.role == "reviewer"
            and who.human_roles
            and self.human_role not in (*who.human_roles, "reviewer")
        ):
            return False
        # A token without a person may be the requester's.
        is_requester = not who.person or who.person == requester.person
        if self.kind != "review" and not self.requester_may_decide and is_requester:
            return False
        return not self.is_voted_on or bool(who.person and who.person not in self.votes)

    def apply(self, name: str, decision: str, route: int) -> None:
        """Apply an attempt."""
        if name == "deadline":
            self.expire()
        elif decision == "withdraw":
            self.withdraw(name)
        elif route != WRONG_ROUTE and (self.kind, decision) != ("blocker", "rejected"):
            self.decide(name, decision)

    def decide(self, name: str, decision: str) -> None:
        if not self.may_decide(name):
            return
        if not self.is_voted_on:
            self.status = decision
            return
        self.votes[WHO[name].person] = decision
        votes = list(self.votes.values())
        yes, no = votes.count("approved"), votes.count("rejected")
        if yes >= self.quorum:
            self.status = "approved"
        elif no >= (self.quorum if self.voters is None else self.voters - self.quorum + 1):
            self.status = "rejected"

    def withdraw(self, name: str) -> None:
        if self.kind == "approval" and self.status == "open" and WHO[name].role in ("operator", "admin"):
            self.status = "cancelled"

    def expire(self) -> None:
        if self.status == "open" and self.on_timeout in ("approve", "reject"):
            self.status = {"approve": "approved", "reject": "rejected"}[self.on_timeout]
        elif self.status == "open" and self.on_timeout == "escalate":
            self.human_role = "operator"


def runs_of(work: str, questions: list[Question], *, is_over: bool = False) -> int:
    """How often the agent of this work has been called."""
    about = [question for question in questions if work in question.about]
    held = any(question.status == "open" for question in about)
    if work == "held":
        return 0 if held else 1
    if work == "running":  # its run continues, and the next one receives the answers
        return 2 if is_over and not held and about else 1
    return 1 if held else 2  # the blocker and the review are questions as well


# Strategies for questions and attempts.

SUBSETS = st.frozensets(st.sampled_from(["held", "running", "blocked", "in review"]), max_size=4)
RULES: dict[str, Any] = {
    "requested_by": st.sampled_from(REQUESTERS),
    "human_role": st.sampled_from(["reviewer", "legal", "editor"]),
    "quorum": st.integers(1, 3),
    "voters": st.sampled_from([None, 3, 5]),
    "self_approval": st.sampled_from([None, True, False]),
    "on_timeout": st.sampled_from([None, "approve", "reject", "escalate"]),
}
APPROVAL = st.fixed_dictionaries({"kind": st.just("approval"), "about": SUBSETS, **RULES})
GATE = st.fixed_dictionaries(
    {**RULES, "kind": st.just("gate"), "about": st.just(frozenset()), "human_role": st.just("reviewer")}
)
QUESTIONS = st.lists(APPROVAL | APPROVAL | GATE, min_size=1, max_size=3)
STEP = st.tuples(
    st.sampled_from(list(WHO)),
    st.integers(0, 4),  # which question, modulo their number
    st.sampled_from(["approved", "approved", "rejected", "withdraw"]),
    st.integers(0, WRONG_ROUTE),  # by which address
)


@dataclass
class World:
    """The product: its work, the clients, and the addresses that they use."""

    engine: Engine
    tenant: Tenant
    clients: dict[str, Any]
    stranger: AgentClient
    works: dict[str, UUID] = field(default_factory=dict)
    questions: list[Question] = field(default_factory=list)

    def post(self, name: str, address: str, body: Any) -> Any:
        return self.clients[name].post(address, body, format="json")

    def submit(self, name: str, work: str, **more: Any) -> UUID:
        answer = self.post(name, ACTIVITIES, {"name": work, "agent_role": "qa", **more})
        assert answer.status_code == 201, answer.json()
        return UUID(answer.json()["id"])

    def begin(self, drawn: list[dict[str, Any]]) -> None:
        self.engine.agent.calls.clear()
        for name in ("running", "blocked", "in review"):
            self.works[name] = self.submit("robot", name)
        self.settle()
        tools = {name: agent_of(self.engine, work) for name, work in self.works.items()}
        blocker = tools["blocked"].create_with("report_blocker", type="api_outage", message="It is down.")
        review = tools["in review"].create_with("request_human_review", question="May I?", human_role="legal")
        self.questions += [
            Question("blocker", frozenset({"blocked"}), id=blocker),
            Question("review", frozenset({"in review"}), human_role="legal", id=review),
        ]
        self.works["held"] = self.submit("robot", "held")
        for one in drawn:
            self.ask(Question(**one))
        self.engine.drain()
        for question in self.questions:
            if question.kind == "gate":
                with tenant_scope(self.tenant.pk):
                    gates = Activity.objects.filter(parent_id=question.work, link_kind=LinkKind.GATE)
                    question.id = gates.values_list("pk", flat=True).get()

    def ask(self, question: Question) -> None:
        options = {
            name: getattr(question, name) for name in ("quorum", "voters", "self_approval", "on_timeout")
        }
        rules = {"due_seconds": 3600} | {name: value for name, value in options.items() if value is not None}
        self.questions.append(question)
        if question.kind == "gate":
            question.work = self.submit(question.requested_by, "gated", requires_approval=True, **rules)
            return
        about = [str(self.works[name]) for name in sorted(question.about)]
        body = {"type": "budget", "title": "Go on?", "activity_ids": about, "human_role": question.human_role}
        answer = self.post(question.requested_by, APPROVALS, {**body, **rules})
        assert answer.status_code == 201, answer.json()
        question.id = UUID(answer.json()["id"])

    def attempt(self, name: str, question: Question, decision: str, route: int) -> None:
        """Attempt an answer. The test compares the effect afterwards, whatever the response is."""
        if name == "deadline":
            with tenant_scope(self.tenant.pk):
                rows = Deadline.objects.filter(activity_id=question.id, happened_at=None)
                rows.update(at=clock.now() - timedelta(seconds=1))
            deadlines.pass_due()
            return
        if name == "agent":
            ids = [str(one) for one in self.works.values()]
            self.stranger.use("create_approval", type="budget", title="Go on?", activity_ids=ids)
        self.post(name, *self.request(question, decision, route))

    def request(self, question: Question, decision: str, route: int) -> tuple[str, Any]:
        work = question.work or self.works[min(question.about, default="held")]
        if decision == "withdraw":
            return f"{APPROVALS}{question.id}/withdraw/", {}
        if route == WRONG_ROUTE and question.kind == "gate":
            return f"{APPROVALS}{question.id}/decide/", {"decision": decision, "notes": "So."}
        verb = {"approved": "approve", "rejected": "reject"}[decision]
        if route == WRONG_ROUTE:
            return f"{ACTIVITIES}{work}/{verb}/", {"notes": "So."}
        if route == 2:
            value = "resolved" if (question.kind, decision) == ("blocker", "approved") else decision
            return f"{INBOX}decide/", {"items": [{"id": str(question.id), "decision": value, "notes": "So."}]}
        address = f"{ACTIVITIES}{question.id if route == 0 or question.kind == 'approval' else work}/"
        if question.kind == "review":
            return f"{address}review/", {"approved": decision == "approved", "feedback": "So."}
        if question.kind == "blocker":
            return (f"{address}resolve/", {"note": "So."}) if verb == "approve" else (f"{address}reject/", {"notes": "So."})  # fmt: skip
        if question.kind == "approval" and route == 0:
            return f"{APPROVALS}{question.id}/decide/", {"decision": decision, "notes": "So."}
        return f"{address}{verb}/", {"notes": "So."}

    def states(self) -> list[tuple[str, set[str]]]:
        """Return the status and the voters of each question."""
        ids = [question.id for question in self.questions]
        with tenant_scope(self.tenant.pk):
            status = dict(Activity.objects.filter(pk__in=ids).values_list("pk", "status"))
            votes = list(Vote.objects.filter(activity_id__in=ids).values_list("activity_id", "voter"))
        names = {"created": "open", "in_progress": "open", "done": "approved"}
        return [
            (names.get(status[one], status[one]), {voter for voted, voter in votes if voted == one})
            for one in ids
        ]

    def end(self) -> None:
        """Cancel all work, so that it occupies no seat in later examples."""
        for work in self.works.values():
            with suppress(TransitionRefused):
                cancellation.cancel(self.tenant.pk, work, actor="test")

    def settle(self) -> dict[str, int]:
        """Run everything that may run, and return how often each agent was called."""
        self.engine.drain()
        return self.runs()

    def runs(self) -> dict[str, int]:
        return {name: len(calls_of(self.engine, work)) for name, work in self.works.items()}


@pytest.fixture
def clients(api: Any, acme: Tenant, settings: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A client for everybody in `WHO`, with a session or a token."""
    settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ACCOUNT = 10_000
    settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ADDRESS = 10_000
    settings.ORCHESTRATOR_TOOL_CALLS_PER_RUN = 10_000
    roles = {"ann": "admin", "bob": "operator", "cleo": "reviewer", "dan": "reviewer", "eve": "viewer"}
    for person, role in roles.items():
        api(role, person=person)
    with tenant_scope(acme.pk):
        Membership.objects.filter(user__username="cleo").update(human_roles=["legal"])
    tokens._known.clear()
    by_name: dict[str, Any] = {}
    for name, who in WHO.items():
        if who.is_session:
            by_name[name] = APIClient()
            by_name[name].force_login(User.objects.get(username=who.person))
        elif who.role:
            by_name[name] = api(who.role, name=name, **({"person": who.person} if who.person else {}))
    return by_name


def test_only_authorised_answers_count_and_work_starts_after_the_last_one(
    engine: Engine, acme: Tenant, clients: dict[str, Any]
) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    _, stranger = accept_work(engine, acme)
    clients["agent"] = stranger.client
    engine.agent.behaviour = lambda request: in_two_runs(engine, request)
    users = {user.username: f"user:{user.pk}" for user in User.objects.all()}

    def follow(world: World, drawn: list[dict[str, Any]], steps: list[tuple[str, int, str, int]]) -> None:
        world.begin(drawn)
        for name, number, decision, route in steps:
            question = world.questions[number % len(world.questions)]
            world.attempt(name, question, decision, route)
            question.apply(name, decision, route)
            expected = [(one.status, {users[voter] for voter in one.votes}) for one in world.questions]
            assert world.states() == expected, (name, question, decision, route)
            runs = {work: runs_of(work, world.questions) for work in world.works}
            assert world.settle() == runs, (name, question, decision, route)
        agent_of(engine, world.works["running"]).post("complete", RESULT)
        runs = {work: runs_of(work, world.questions, is_over=True) for work in world.works}
        assert world.settle() == runs

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    @given(drawn=QUESTIONS, steps=st.lists(STEP, min_size=4, max_size=12))
    def holds(drawn: list[dict[str, Any]], steps: list[tuple[str, int, str, int]]) -> None:
        world = World(engine, acme, clients, stranger)
        try:
            follow(world, drawn, steps)
        finally:
            world.end()

    holds()


def in_two_runs(engine: Engine, request: AgentRequest) -> AgentResult:
    """Accept at the first call and complete at the second. Work without a second call is completed at once."""
    is_first = len(calls_of(engine, request.activity_id)) == 1
    return (
        Accepted() if is_first and request.name not in ("held", "gated") else Completed(Output(content="x"))
    )
