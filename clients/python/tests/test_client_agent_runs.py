"""An agent that uses the client: checks the job, reports about the run, asks for things, and stops when it is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from activities import run_tokens
from activities.run_tokens import RunToken
from agents.contracts import Accepted
from tenants.models import Tenant
from tests.engine import Engine

import orchestrator_client as oc
from orchestrator_client.objects import Job


@pytest.fixture
def job(engine: Engine, tenant: Tenant, server: str) -> Job:
    """What an agent gets that has accepted its work; only what this test needs of it."""
    engine.serve(tenant)
    engine.agent.behaviour = lambda request: Accepted()
    (activity_id,) = engine.submit(tenant)
    engine.drain()
    run_id = engine.agent.calls[0].run_id
    token = RunToken(tenant.pk, activity_id, run_id, engine.get(tenant, activity_id).fence)
    callback = run_tokens.issuing(token)()
    url = server + callback.url[callback.url.index("/api/") :]
    return Job(job_id=str(activity_id), callback={"url": url, "token": callback.token})


@pytest.fixture
def run(job: Job) -> Iterator[oc.AgentRun]:
    with oc.AgentRun.of(job) as made:
        yield made


def test_an_agent_reports_and_gives_its_result(run: oc.AgentRun, job: Job, client: oc.Client) -> None:
    assert run.job().job_id == job.job_id
    assert run.heartbeat(progress={"page": 1}, usage={"input_tokens": 5, "output_tokens": 1}).stop is False

    first, again = (run.complete(output={"content": "done"}) for _ in range(2))

    assert (first.accepted, first.duplicate, again.duplicate) == (True, False, True)
    assert client.activities.output(job.job_id).content == "done"


def test_what_an_agent_says_is_read_while_it_works(run: oc.AgentRun, job: Job, client: oc.Client) -> None:
    kept = run.log(lines=[{"kind": "text", "text": "I begin."}, {"kind": "tool_call", "text": "search"}])
    run.log(lines=[{"kind": "text", "text": "I begin."}])

    assert (kept.accepted, kept.dropped, kept.last) == (2, 0, 2)
    (attempt,) = client.activities.runs(job.job_id)
    first = client.activities.log(job.job_id, attempt.id, limit=2)
    rest = client.activities.log(job.job_id, attempt.id, after=first.cursor)
    assert [line.text for line in (*first.results, *rest.results)] == ["I begin.", "search", "I begin."]
    assert (rest.cursor, rest.ended) == (3, False)


def test_a_failure_is_told(run: oc.AgentRun, job: Job, client: oc.Client) -> None:
    assert run.fail("cannot read it", retryable=False, code="unreadable").accepted is True

    found = client.activities.get(job.job_id)
    assert found.error is not None
    assert found.error["code"] == "unreadable"


TOOLS: dict[str, tuple[Callable[[oc.AgentRun], oc.Record], str]] = {
    "report_blocker": (lambda run: run.report_blocker(type="access", message="No login."), "blocked"),
    "create_subtask": (
        lambda run: run.create_subtask(name="Find it", agent_role="seo", blocking=True),
        "awaiting_subtask",
    ),
    "request_human_review": (lambda run: run.request_human_review(question="Is it good?"), "awaiting_review"),
    "create_approval": (lambda run: run.create_approval(type="content", title="Publish?"), "awaiting_review"),
    "reassign_task": (lambda run: run.reassign_task(reason="not mine", agent_role="seo"), "reassigned"),
    "by name": (lambda run: run.use_tool("report_blocker", type="access", message="x"), "blocked"),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_puts_the_work_aside(run: oc.AgentRun, job: Job, client: oc.Client, tool: str) -> None:
    use, status = TOOLS[tool]

    assert use(run).stop is True

    assert client.activities.get(job.job_id).status == status


def test_an_agent_whose_run_is_over_is_told_to_stop(run: oc.AgentRun, job: Job, client: oc.Client) -> None:
    client.activities.cancel(job.job_id, reason="not needed")

    with pytest.raises(oc.Conflict) as caught:
        run.complete(output={"content": "too late"})

    assert isinstance(caught.value, oc.RunSuperseded)
    assert caught.value.members["stop"] is True


def test_a_token_of_nobody_is_refused(job: Job) -> None:
    with oc.AgentRun(job.callback["url"], "made-up") as run, pytest.raises(oc.Unauthenticated):
        run.heartbeat()


def test_reports_can_be_awaited(job: Job) -> None:
    async def work() -> list[bool]:
        async with oc.AsyncAgentRun.of(job) as run:
            beat = await run.heartbeat()
            receipt = await run.complete(output={"content": "done"})
            late = await run.fail("no")
            return [beat.stop, receipt.accepted, late.accepted]

    with pytest.raises(oc.RunSuperseded):
        asyncio.run(work())
