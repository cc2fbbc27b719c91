"""An agent's conversation about a deliverable: known as soon as the agent names it, continued by whoever runs next, ended for a reason."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.core import signing
from django.db import IntegrityError, connections
from django.db.models.functions import Now
from pytest_httpserver import HTTPServer
from rest_framework.test import APIClient
from werkzeug import Request, Response

from activities import approvals, blockers, recovery, results, run_tokens, wakes
from activities.models import WorkerProcess
from activities.run_tokens import RunToken
from agents import configuration, outbound, sessions
from agents.contracts import Accepted, AgentRequest, AgentResult, Completed, Output
from agents.exceptions import AgentRateLimited, PermanentAgentError, RetryableAgentError, SessionInvalid
from agents.models import AgentConfig, AgentSession, EndReason, Skill
from tenants.context import system_scope, tenant_scope
from tenants.models import Tenant
from tests.engine import Engine, at_once, elsewhere, eventually
from tests.integration.test_api_agent_runs import RESULT, Agent

pytestmark = pytest.mark.usefixtures("one_at_a_time")

ROOT = Path(__file__).resolve().parents[2]
REPORT = uuid4()  # a deliverable


class Died(BaseException):
    """Ends a worker in the middle of its work, as SIGKILL would: nothing of ours catches it."""


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant)
    return tenant


def naming(*ids: str) -> Callable[[AgentRequest], AgentResult]:
    """An agent whose runs name these conversations, one after another; the last one from then on."""
    left = list(ids)

    def behave(request: AgentRequest) -> AgentResult:
        return Completed(Output("done"), session_id=left.pop(0) if len(left) > 1 else left[0])

    return behave


def run(engine: Engine, tenant: Tenant, role: str = "qa", **fields: Any) -> AgentRequest:
    """One more activity about the report; what its agent was asked."""
    engine.submit(tenant, role, **{"deliverable_id": REPORT, **fields})
    engine.drain()
    return engine.agent.calls[-1]


def heartbeat(request: AgentRequest, **body: Any) -> Any:
    return elsewhere(lambda: Agent(request).post("heartbeat", body))


def lose(engine: Engine) -> None:
    """Declare the engine's own worker lost, and hand its runs on."""
    with system_scope():
        assert recovery.declare_lost(WorkerProcess.objects.get(pk=engine.lease.worker_id))
    engine.lease.beat()
    recovery.reclaim_runs_of_ended_workers()


def history(tenant: Tenant) -> list[tuple[str, str]]:
    """All conversations of a tenant with why they ended, oldest first."""
    with tenant_scope(tenant.pk):
        rows = AgentSession.objects.order_by("created_at", "pk")
        return list(rows.values_list("external_session_id", "end_reason"))


def live(tenant: Tenant) -> list[str]:
    return [session for session, reason in history(tenant) if not reason]


def configure(tenant: Tenant, **fields: Any) -> None:
    with tenant_scope(tenant.pk):
        AgentConfig.objects.filter(agent_id="qa").update(**fields)
    configuration.forget()


# Continued


def test_a_revision_continues_the_conversation_of_what_was_rejected(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = naming("s-1")
    (activity_id,) = engine.submit(acme, deliverable_id=REPORT, requires_approval=True)
    engine.drain()

    approvals.reject(acme.pk, activity_id, actor="test", notes="Shorter.")
    engine.drain()

    assert [(call.wake_reason, call.session_id) for call in engine.agent.calls] == [
        ("new_task", None),
        ("rejection", "s-1"),
    ]


def test_a_wake_continues_the_conversation(engine: Engine, acme: Tenant) -> None:
    def woken(request: AgentRequest) -> AgentResult:
        if len(engine.agent.calls) == 1:
            elsewhere(lambda: wake(request))
        return Completed(Output("done"), session_id="s-1")

    def wake(request: AgentRequest) -> None:
        with tenant_scope(acme.pk):
            wakes.record(
                engine.get(acme, request.activity_id), "unblocked", payload={"blocker_resolution": "x"}
            )

    engine.agent.behaviour = woken

    assert run(engine, acme).session_id == "s-1"


def test_a_conversation_belongs_to_its_deliverable_role_and_tenant(
    engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    engine.serve(other_tenant)
    engine.agent.behaviour = naming("s-1")
    run(engine, acme)

    same = run(engine, acme)
    strangers = [
        run(engine, acme, role="dev"),
        run(engine, acme, deliverable_id=uuid4()),
        run(engine, acme, deliverable_id=None),
        run(engine, other_tenant),
    ]

    assert same.session_id == "s-1"
    assert [request.session_id for request in strangers] == [None] * 4


def test_an_agent_without_conversations_leaves_nothing_behind(engine: Engine, acme: Tenant) -> None:
    run(engine, acme)

    assert run(engine, acme).session_id is None
    assert history(acme) == []


def test_every_run_records_its_conversation(api: Any, engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = naming("s-1")
    first = run(engine, acme)
    unrelated = run(engine, acme, deliverable_id=None)

    def fail(request: AgentRequest) -> AgentResult:
        raise PermanentAgentError("no")

    engine.agent.behaviour = fail
    failed = run(engine, acme)

    for request in (first, unrelated, failed):
        (shown,) = api().get(f"/api/v1/activities/{request.activity_id}/runs/").json()["results"]
        assert shown["session_id"] == "s-1"


def test_the_job_that_is_told_again_names_the_conversation_that_was_given(
    engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = naming("s-1")
    run(engine, acme)
    engine.agent.behaviour = lambda request: Accepted()

    agent = Agent(run(engine, acme))
    agent.post("heartbeat", {"session_id": "s-2"})

    assert agent.get().json()["session_id"] == "s-1"


# Known as soon as it is named


def test_a_conversation_named_in_a_heartbeat_outlives_the_worker(engine: Engine, acme: Tenant) -> None:
    def killed(request: AgentRequest) -> AgentResult:
        assert heartbeat(request, session_id="s-1").status_code == 200
        raise Died

    engine.agent.behaviour = killed
    engine.submit(acme, deliverable_id=REPORT)
    with pytest.raises(Died):
        engine.deliver()
    engine.agent.behaviour = naming("s-1")

    lose(engine)
    engine.drain()

    assert [call.session_id for call in engine.agent.calls] == [None, "s-1"]
    assert history(acme) == [("s-1", "")]


@pytest.mark.usefixtures("tenant")
def test_after_sigkill_the_next_run_continues_the_same_conversation(
    engine: Engine, acme: Tenant, httpserver: HTTPServer, process_environment: dict[str, str], settings: Any
) -> None:
    jobs: list[dict[str, Any]] = []
    named, over = threading.Event(), threading.Event()

    def answer(request: Request) -> Response:
        jobs.append(dict(request.get_json()))
        if len(jobs) > 1:
            return Response('{"output": {}, "session_id": "s-1"}')
        _post(jobs[0]["callback"], "heartbeat", {"session_id": "s-1"})
        named.set()
        over.wait(30)
        return Response(status=500)

    httpserver.expect_request("/agent").respond_with_handler(answer)
    settings.ORCHESTRATOR_EGRESS_ALLOW = (f"{httpserver.host}:{httpserver.port}",)
    engine.serve(acme, "qa", adapter="http", endpoint=httpserver.url_for("/agent"))
    (activity_id,) = engine.submit(acme, deliverable_id=REPORT)
    engine.messages()  # it is on its queue
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "orchestrator",
        "worker",
        "-Q",
        "agent__qa",
        "--concurrency=1",
    ]
    environment = {**process_environment, "AGENT_EGRESS_ALLOW": settings.ORCHESTRATOR_EGRESS_ALLOW[0]}

    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as worker:
        assert named.wait(60)
        os.kill(worker.pid, signal.SIGKILL)
    over.set()
    eventually(lambda: _taken_over(engine, acme, activity_id))
    engine.drain()

    assert [job["session_id"] for job in jobs] == [None, "s-1"]
    assert engine.status(acme, activity_id) == "done"
    outbound.close_connections()


def _post(callback: dict[str, str], verb: str, body: Any) -> None:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {callback['token']}")
    address = callback["url"].partition("//")[2].partition("/")[2]
    try:
        assert client.post(f"/{address}{verb}/", body).status_code == 200
    finally:
        connections.close_all()


def _taken_over(engine: Engine, tenant: Tenant, activity_id: UUID) -> bool:
    """Let recovery see that the process is gone; whether its run is given up for lost."""
    watch = recovery.LivenessWatch()
    for worker in [watch.lost(), watch.lost()][-1]:
        recovery.declare_lost(worker)
    recovery.reclaim_runs_of_ended_workers()
    return engine.runs(tenant, activity_id)[0].status == "stalled"


@pytest.mark.parametrize("early", [False, True], ids=["then the callback", "after the callback"])
def test_a_conversation_named_with_the_acceptance_is_known(engine: Engine, acme: Tenant, early: bool) -> None:
    def accept(request: AgentRequest) -> AgentResult:
        if early:
            elsewhere(lambda: Agent(request).post("complete", RESULT))
        return Accepted("s-1")

    engine.agent.behaviour = accept
    request = run(engine, acme)

    assert live(acme) == ["s-1"]
    (shown,) = engine.runs(acme, request.activity_id)
    assert (shown.session_id, shown.status) == ("s-1", "completed" if early else "running")


def test_a_conversation_named_by_the_callback_is_known(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = lambda request: Accepted()

    Agent(run(engine, acme)).post("complete", {**RESULT, "session_id": "s-1"})

    assert run(engine, acme).session_id == "s-1"


@pytest.mark.parametrize("how", ["in its answer", "in a callback", "in a heartbeat"])
def test_an_agent_that_put_its_work_aside_goes_on_with_the_conversation_that_it_named_afterwards(
    engine: Engine, acme: Tenant, how: str
) -> None:
    def put_aside(request: AgentRequest) -> AgentResult:
        blocker = {"type": "missing_integration", "message": "The blog refuses our token."}
        assert elsewhere(lambda: Agent(request).post("tools/report_blocker", blocker)).status_code < 300
        if how == "in its answer":
            return Completed(Output("not wanted"), session_id="s-1")
        body = {"session_id": "s-1"} if how == "in a heartbeat" else {**RESULT, "session_id": "s-1"}
        verb = "heartbeat" if how == "in a heartbeat" else "complete"
        assert elsewhere(lambda: Agent(request).post(verb, body)).status_code == 200
        return Completed(Output("not wanted"))

    engine.agent.behaviour = put_aside
    request = run(engine, acme)
    engine.agent.behaviour = naming("s-1")

    blockers.resolve(acme.pk, request.activity_id, actor="test", note="Renewed.")
    engine.drain()

    resumed = engine.agent.calls[-1]
    assert (resumed.wake_reason, resumed.session_id) == ("unblocked", "s-1")
    assert "Renewed." in resumed.prompt
    assert [each.session_id for each in engine.runs(acme, request.activity_id)] == ["s-1", "s-1"]


@pytest.mark.parametrize("how", ["in its answer", "with its acceptance", "in a heartbeat", "in a callback"])
def test_a_run_that_was_taken_over_names_nothing_any_more(engine: Engine, acme: Tenant, how: str) -> None:
    def lost_meanwhile(request: AgentRequest) -> AgentResult:
        if len(engine.agent.calls) > 1:
            return Completed(Output("done"), session_id="s-2")
        elsewhere(lambda: results.stalled(RunToken(acme.pk, request.activity_id, request.run_id, 1)))
        if how == "in a heartbeat":
            assert heartbeat(request, session_id="s-late").status_code == 409
        if how == "in a callback":
            elsewhere(lambda: Agent(request).post("complete", {**RESULT, "session_id": "s-late"}))
        late = "s-late" if how in ("in its answer", "with its acceptance") else None
        return Accepted(late) if how == "with its acceptance" else Completed(Output("late"), session_id=late)

    engine.agent.behaviour = lost_meanwhile
    run(engine, acme)

    assert history(acme) == [("s-2", "")]


@pytest.mark.parametrize("session_id", ["", 5, "x" * 201, ["s-1"]])
def test_a_conversation_that_could_not_be_kept_is_refused(
    engine: Engine, acme: Tenant, session_id: Any
) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    agent = Agent(run(engine, acme))

    refused = agent.post("heartbeat", {"session_id": session_id})

    assert (refused.status_code, refused.json()["errors"][0]["path"]) == (400, "session_id")
    assert history(acme) == []


def test_naming_it_again_changes_nothing(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    agent = Agent(run(engine, acme))
    agent.post("heartbeat", {"session_id": "s-1"})
    with tenant_scope(acme.pk):
        before = AgentSession.objects.get().updated_at

    answers = [agent.post("heartbeat", {"session_id": "s-1"}) for _ in range(3)]

    assert [answer.json()["stop"] for answer in answers] == [False] * 3
    with tenant_scope(acme.pk):
        assert AgentSession.objects.get().updated_at == before


# Replaced


def test_another_conversation_takes_the_place_of_the_one_before(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = naming("s-1", "s-2")
    run(engine, acme)
    run(engine, acme)

    assert history(acme) == [("s-1", "replaced"), ("s-2", "")]
    assert run(engine, acme).session_id == "s-2"


def test_of_many_that_are_named_at_once_one_is_live_and_all_are_kept(engine: Engine, acme: Tenant) -> None:
    def name(number: int) -> None:
        with tenant_scope(acme.pk):
            sessions.begin(acme.pk, REPORT, "qa", f"s-{number}")

    outcomes = at_once(*[lambda n=number: name(n) for number in range(10)])

    assert outcomes == [None] * 10
    assert len(live(acme)) == 1
    assert sorted(session for session, _ in history(acme)) == [f"s-{number}" for number in range(10)]


def test_the_same_one_named_by_many_at_once_is_one(engine: Engine, acme: Tenant) -> None:
    def name() -> None:
        with tenant_scope(acme.pk):
            sessions.begin(acme.pk, REPORT, "qa", "s-1")

    assert at_once(*[name] * 10) == [None] * 10
    assert history(acme) == [("s-1", "")]


def test_two_runs_that_name_different_ones_at_once_end_both_and_leave_one_live(
    engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    agents = [Agent(run(engine, acme)) for _ in range(6)]

    answers = at_once(
        *[
            lambda a=agent, n=n: a.post("complete", {**RESULT, "session_id": f"s-{n}"})
            for n, agent in enumerate(agents)
        ]
    )

    assert [answer.status_code for answer in answers] == [200] * 6
    assert len(live(acme)) == 1


def test_the_database_itself_allows_one_that_is_live_and_an_end_with_its_reason_alone(acme: Tenant) -> None:
    fields: dict[str, Any] = {
        "tenant": acme,
        "deliverable_id": REPORT,
        "agent_id": "qa",
        "external_session_id": "s",
    }
    faulty: list[dict[str, Any]] = [{}, {"ended_at": Now()}, {"end_reason": "invalid"}]
    with tenant_scope(acme.pk):
        AgentSession.objects.create(**fields)

    for wrong in faulty:
        with pytest.raises(IntegrityError), tenant_scope(acme.pk):
            AgentSession.objects.create(**fields, **wrong)


# Rotated


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
def test_an_agent_that_is_told_to_be_something_else_begins_anew(
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
def test_what_an_agent_is_not_told_does_not_end_its_conversation(
    engine: Engine, acme: Tenant, change: Callable[[Tenant], None]
) -> None:
    engine.agent.behaviour = naming("s-1")
    run(engine, acme)

    change(acme)

    assert run(engine, acme).session_id == "s-1"


def test_a_new_version_of_a_skill_begins_anew_and_so_does_its_removal(engine: Engine, acme: Tenant) -> None:
    add_skill(acme)
    engine.agent.behaviour = naming("s-1", "s-2", "s-3")
    run(engine, acme)
    with tenant_scope(acme.pk):
        Skill.objects.update(version=2)

    changed = run(engine, acme)
    with tenant_scope(acme.pk):
        Skill.objects.all().delete()
    add_skill(acme)  # as it was at first, but not the same
    made_again = run(engine, acme)

    assert (changed.session_id, made_again.session_id) == (None, None)


def test_instructions_that_change_during_a_run_end_what_the_run_has_begun(
    engine: Engine, acme: Tenant
) -> None:
    def changed_meanwhile(request: AgentRequest) -> AgentResult:
        elsewhere(lambda: configure(acme, instructions="You are something else."))
        return Completed(Output("done"), session_id="s-1")

    engine.agent.behaviour = changed_meanwhile
    run(engine, acme)
    engine.agent.behaviour = naming("s-2")

    assert run(engine, acme).session_id is None
    assert history(acme) == [("s-1", "instructions_changed"), ("s-2", "")]


def test_instructions_that_change_before_the_callback_end_what_the_run_has_begun(
    engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = lambda request: Accepted()
    agent = Agent(run(engine, acme))

    configure(acme, instructions="You are something else.")
    agent.post("complete", {**RESULT, "session_id": "s-1"})

    assert run(engine, acme).session_id is None
    assert history(acme) == [("s-1", "instructions_changed")]


def test_a_run_that_goes_on_with_an_ended_conversation_does_not_bring_it_back(
    engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = naming("s-1")
    run(engine, acme)
    engine.agent.behaviour = lambda request: Accepted()
    agent = Agent(run(engine, acme))
    configure(acme, instructions="You are something else.")
    engine.agent.behaviour = naming("s-2")
    run(engine, acme)

    agent.post("heartbeat", {"session_id": "s-1"})
    agent.post("complete", {**RESULT, "session_id": "s-1"})

    assert history(acme) == [("s-1", "instructions_changed"), ("s-2", "")]


def test_an_agent_that_uses_the_same_id_for_ever_begins_anew_under_it(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = naming("report-42")
    run(engine, acme)
    configure(acme, instructions="You are something else.")

    fresh = run(engine, acme)

    assert fresh.session_id is None
    assert history(acme) == [("report-42", "instructions_changed"), ("report-42", "")]
    assert run(engine, acme).session_id == "report-42"


def test_a_conversation_from_before_instructions_were_known_goes_on(engine: Engine, acme: Tenant) -> None:
    with tenant_scope(acme.pk):
        sessions.begin(acme.pk, REPORT, "qa", "s-old")
    engine.agent.behaviour = naming("s-old")
    adopted = run(engine, acme)
    configure(acme, instructions="You are something else.")

    assert adopted.session_id == "s-old"
    assert run(engine, acme).session_id is None


# Invalid


def forgetful(engine: Engine, known: str = "s-2") -> Callable[[AgentRequest], AgentResult]:
    """An agent that knows this conversation alone."""

    def behave(request: AgentRequest) -> AgentResult:
        if request.session_id not in (None, known):
            raise SessionInvalid("I do not remember that.")
        return Completed(Output("done"), session_id=known)

    return behave


def test_an_invalid_conversation_costs_one_fresh_start_and_no_attempt(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = naming("s-1")
    run(engine, acme)
    engine.agent.behaviour = forgetful(engine)

    request = run(engine, acme, max_attempts=1)

    done = engine.get(acme, request.activity_id)
    assert [call.session_id for call in engine.agent.calls[1:]] == ["s-1", None]
    assert (done.status, done.attempts, done.error) == ("done", 1, None)
    assert history(acme) == [("s-1", "invalid"), ("s-2", "")]
    assert [each.status for each in engine.runs(acme, request.activity_id)] == ["failed", "completed"]


def test_an_invalid_conversation_that_a_callback_reports_costs_one_fresh_start(
    engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = naming("s-1")
    run(engine, acme)
    engine.agent.behaviour = lambda request: Accepted()
    (activity_id,) = engine.submit(acme, deliverable_id=REPORT)
    engine.drain()
    body = {"error": {"message": "unknown thread", "code": "session_invalid"}}

    agent = Agent(engine.agent.calls[-1])
    answers = [agent.post("fail", body).json() for _ in range(2)]
    engine.drain()

    assert [answer["duplicate"] for answer in answers] == [False, True]
    assert engine.agent.calls[-1].session_id is None
    assert engine.status(acme, activity_id) == "in_progress"
    assert history(acme) == [("s-1", "invalid")]


def test_the_same_complaint_without_a_conversation_is_a_failure_like_any_other(
    engine: Engine, acme: Tenant
) -> None:
    def complain(request: AgentRequest) -> AgentResult:
        raise SessionInvalid("I never remember anything.")

    engine.agent.behaviour = naming("s-1")
    run(engine, acme)
    engine.agent.behaviour = complain

    request = run(engine, acme)

    failed = engine.get(acme, request.activity_id)
    assert len(engine.agent.calls) == 1 + 2
    assert (failed.status, failed.error["code"]) == ("failed", "session_invalid")


@pytest.mark.parametrize("retryable", [False, True])
def test_an_agent_that_begins_a_conversation_only_to_disown_it_uses_up_its_attempts(
    engine: Engine, acme: Tenant, retryable: bool
) -> None:
    def fickle(request: AgentRequest) -> AgentResult:
        heartbeat(request, session_id=f"s-{len(engine.agent.calls)}")
        if retryable:
            raise RetryableAgentError("Not that one.", code="session_invalid")
        raise SessionInvalid("Not that one.")

    engine.agent.behaviour = fickle
    (activity_id,) = engine.submit(acme, deliverable_id=REPORT, retry={"max_attempts": 3})
    for _ in range(6):
        engine.drain()
        engine.make_due(acme)

    assert engine.status(acme, activity_id) == "failed"
    assert len(engine.agent.calls) == (3 if retryable else 1)


def test_two_runs_that_disown_the_same_conversation_each_begin_anew(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = naming("s-1")
    run(engine, acme)
    engine.agent.behaviour = lambda request: Accepted()
    agents = [Agent(run(engine, acme, max_attempts=1)) for _ in range(2)]
    body = {"error": {"message": "unknown thread", "code": "session_invalid"}}

    answers = at_once(*[lambda a=agent: a.post("fail", body) for agent in agents])
    engine.drain()

    assert [answer.status_code for answer in answers] == [200, 200]
    assert [call.session_id for call in engine.agent.calls[1:]] == ["s-1", "s-1", None, None]


def test_a_failure_of_another_kind_leaves_the_conversation_as_it_is(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = naming("s-1")
    run(engine, acme)

    def limited(request: AgentRequest) -> AgentResult:
        if len(engine.agent.calls) == 2:
            raise AgentRateLimited("slow down", retry_after=1)
        return Completed(Output("done"))

    engine.agent.behaviour = limited
    run(engine, acme)
    engine.make_due(acme)
    engine.drain()

    assert [call.session_id for call in engine.agent.calls] == [None, "s-1", "s-1"]
    assert live(acme) == ["s-1"]


def test_a_conversation_ends_once(acme: Tenant) -> None:
    def end() -> bool:
        with tenant_scope(acme.pk):
            return sessions.end(acme.pk, REPORT, "qa", "s-1", EndReason.INVALID)

    with tenant_scope(acme.pk):
        sessions.begin(acme.pk, REPORT, "qa", "s-1")

    assert sorted(at_once(end, end, end)) == [False, False, True]


def test_the_token_of_a_callback_remembers_what_its_run_was_told(engine: Engine, acme: Tenant) -> None:
    engine.agent.behaviour = naming("s-1")
    told = [run_tokens.read(run(engine, acme).callback.token) for _ in range(2)]

    with tenant_scope(acme.pk):
        kept = AgentSession.objects.get()
    assert [(token.session_id, token.briefing) for token in told if token] == [
        ("", kept.briefing),
        ("s-1", kept.briefing),
    ]


def test_a_token_from_before_conversations_were_in_it_still_opens_its_run(acme: Tenant) -> None:
    ids = [uuid4() for _ in range(3)]
    older = signing.dumps([*map(str, ids), 7], salt="orchestrator.agent-run")

    assert run_tokens.read(older) == RunToken(ids[0], ids[1], ids[2], 7)
