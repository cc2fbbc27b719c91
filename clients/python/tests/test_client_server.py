"""The client and the real server: what the one asks is what the other means."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from tenants.models import Tenant
from tests.engine import Engine

import orchestrator_client as oc

Tokens = Callable[..., str]

FLOW = {
    "key": "brief",
    "name": "Brief",
    "steps": [
        {"id": "research", "agent_role": "qa"},
        {"id": "write", "agent_role": "seo", "depends_on": ["research"]},
    ],
}


@pytest.fixture
def served(engine: Engine, tenant: Tenant) -> Engine:
    engine.serve(tenant)
    return engine


def test_work_is_submitted_done_and_read(client: oc.Client, served: Engine) -> None:
    made = client.activities.create(name="Audit", agent_role="qa", params={"url": "/x"}, dedup_key="d")
    again = client.activities.create(name="Audit", agent_role="qa", dedup_key="d")
    assert (again.id, again.deduplicated) == (made.id, True)
    assert client.activities.why(made.id).code is not None
    served.drain()

    done = client.wait(made.id, timeout=5)

    assert (done.status, done.params) == ("done", {"url": "/x"})
    assert client.activities.output(made.id).content == "Audit: done"
    assert [run.status for run in client.activities.runs(made.id)] == ["completed"]
    assert client.activities.timeline(made.id).first() is not None


def test_several_are_submitted_at_once(client: oc.Client, served: Engine) -> None:
    made = client.activities.create_many([{"name": name, "agent_role": "qa"} for name in "abc"])

    assert len(made.results) == 3
    assert {found.name for found in client.activities.list(status=["created", "done"], limit=2)} == set("abc")


def test_every_fault_of_a_submission_is_named_by_its_path(client: oc.Client, served: Engine) -> None:
    with pytest.raises(oc.ValidationFailed) as caught:
        client.activities.create(name="", agent_role="qa", timeout_seconds=-1)

    assert {"name", "timeout_seconds"} <= {fault.path for fault in caught.value.errors}


def test_another_tenants_work_is_not_there(
    client: oc.Client, server: str, token_of: Tokens, other_tenant: Tenant, served: Engine
) -> None:
    made = client.activities.create(name="x", agent_role="qa")

    with oc.Client(server, token_of(tenant=other_tenant)) as stranger, pytest.raises(oc.NotFound):
        stranger.activities.get(made.id)


def test_who_may_not_and_who_is_nobody(server: str, token_of: Tokens) -> None:
    with oc.Client(server, token_of("viewer")) as viewer, pytest.raises(oc.Forbidden):
        viewer.activities.create(name="x", agent_role="qa")
    with oc.Client(server, "made-up") as nobody, pytest.raises(oc.Unauthenticated):
        nobody.activities.list().first()


def test_a_second_decision_is_told_who_was_first(client: oc.Client, served: Engine) -> None:
    made = client.activities.create(name="x", agent_role="qa", requires_approval=True)
    served.drain()
    assert client.inbox.list().first() is not None
    assert client.activities.approve(made.id, notes="fine").status == "approved"

    with pytest.raises(oc.AlreadyDecided) as caught:
        client.activities.reject(made.id, notes="no")

    assert "admin of acme" in str(caught.value.members)


def test_a_persons_task_is_taken_up_completed_and_its_output_read(client: oc.Client) -> None:
    made = client.activities.create(name="Call them", human_role="editor")

    assert client.activities.start(made.id).status == "in_progress"
    assert client.activities.complete(made.id, output={"content": "called"}, note="n").status == "done"
    assert client.activities.output(made.id).content == "called"
    with pytest.raises(oc.Conflict):
        client.activities.start(made.id)


def test_a_change_of_what_somebody_else_has_changed_is_refused(client: oc.Client) -> None:
    made = client.budgets.create(name="b", cap=10, unit="dollars")
    seen = client.budgets.get(made.id)
    client.budgets.update(made.id, name="b", cap=20, unit="dollars", etag=seen.etag)

    with pytest.raises(oc.PreconditionFailed):
        client.budgets.update(made.id, name="b", cap=30, unit="dollars", etag=seen.etag)

    found = client.budgets.get(made.id)
    assert float(found.cap) == 20
    client.budgets.delete(made.id, etag=found.etag)
    assert client.budgets.list().first() is None


def test_lists_are_read_to_their_end(client: oc.Client, served: Engine) -> None:
    for number in range(7):
        client.activities.create(name=f"n{number}", agent_role="qa", idempotency_key=f"k{number}")

    pages = list(client.activities.list(limit=3, ordering="created_at").pages())

    assert [len(page) for page in pages] == [3, 3, 1]
    assert [found.name for page in pages for found in page] == [f"n{number}" for number in range(7)]
    with pytest.raises(oc.ValidationFailed):
        client.activities.list(no_such_filter=1).first()


def test_an_answer_that_was_lost_makes_nothing_twice(server: str, token_of: Tokens, served: Engine) -> None:
    class LosesTheFirstAnswer(httpx.HTTPTransport):
        lost = 0

        def handle_request(self, request: httpx.Request) -> httpx.Response:
            answer = super().handle_request(request)
            if request.method == "POST" and not self.lost:
                self.lost += 1
                answer.read()
                answer.close()
                raise httpx.ReadError("the answer was lost")
            return answer

    policy = oc.RetryPolicy(base_seconds=0)
    with oc.Client(server, token_of(), retries=policy, transport=LosesTheFirstAnswer()) as client:
        made = client.activities.create(name="once", agent_role="qa")

        assert [found.id for found in client.activities.list()] == [made.id]


def test_a_key_that_was_used_for_something_else_is_refused(client: oc.Client, served: Engine) -> None:
    client.activities.create(name="a", agent_role="qa", idempotency_key="k")

    with pytest.raises(oc.IdempotencyKeyReused):
        client.activities.create(name="b", agent_role="qa", idempotency_key="k")


def test_a_pipeline_is_made_run_looked_at_and_cancelled(client: oc.Client, served: Engine) -> None:
    made = client.pipelines.create(FLOW)
    assert client.pipelines.update("brief", {**FLOW, "name": "Brief 2"}, etag=made.etag).version == 2
    run = client.pipelines.run("brief", params={"topic": "x"})

    assert (run.version, [step.step for step in run.steps]) == (2, ["research", "write"])
    assert client.pipeline_runs.picture(run.id).lstrip().startswith("<svg")
    assert client.pipeline_runs.cancel(run.id, reason="not needed").status in ("cancelling", "cancelled")
    assert client.pipeline_runs.list(pipeline="brief").first() is not None


def test_a_schedule_is_previewed_saved_changed_and_removed(client: oc.Client, served: Engine) -> None:
    body: dict[str, Any] = {
        "name": "Daily", "repeat": "repeating", "cron": "0 7 * * *", "target_type": "agent", "agent_role": "qa",
    }  # fmt: skip
    assert len(client.schedules.preview_of(body, count=3).fires_at) == 3
    made = client.schedules.create(**body)
    assert client.schedules.change(made.id, enabled=False, etag=made.etag).enabled is False
    assert len(client.schedules.preview(made.id, count=2).fires_at) == 2
    assert client.schedules.run(made.id).id
    assert len(list(client.schedules.executions(made.id))) == 1

    client.schedules.delete(made.id)

    assert client.schedules.list().first() is None


def test_datasets_queues_workers_and_figures_can_be_read(client: oc.Client, served: Engine) -> None:
    client.datasets.create(name="ticker", fields={"id": "string"}, rows=[{"id": "A"}])
    client.datasets.add_rows("ticker", rows=[{"id": "B"}])
    assert len(list(client.datasets.rows("ticker"))) == 2
    client.datasets.add_rows("ticker", rows=[{"id": "C"}], replace=True)
    assert len(list(client.datasets.rows("ticker"))) == 1

    assert {queue.role for queue in client.queues.list()} >= {"qa", "seo"}
    assert client.queues.pause("qa").paused is True
    assert client.queues.resume("qa").paused is False
    assert client.usage.report(group_by=["role", "day"]).group_by == ["role", "day"]
    list(client.workers.list())
    list(client.providers.list())
    assert client.dead_letters.groups().first() is None
    assert client.dead_letters.replay(filter={"state": "open"}, dry_run=True).count == 0


def test_a_tenants_own_settings_of_a_role(client: oc.Client, served: Engine) -> None:
    found = client.agent_configs.get("qa")

    changed = client.agent_configs.update("qa", max_concurrency=3, etag=found.etag)

    assert changed.max_concurrency == 3
    assert {agent.role for agent in client.agents.list()} >= {"qa"}


def test_everything_can_be_awaited_and_done_at_once(server: str, token_of: Tokens, served: Engine) -> None:
    async def submit() -> tuple[set[str], set[str]]:
        async with oc.AsyncClient(server, token_of_admin) as client:
            made = await asyncio.gather(
                *(client.activities.create(name=f"n{number}", agent_role="qa") for number in range(8))
            )
            listed = {found.id async for found in client.activities.list(limit=3)}
            with pytest.raises(oc.NotFound):
                await client.activities.get("00000000-0000-7000-8000-000000000000")
            return {found.id for found in made}, listed

    token_of_admin = token_of()
    made, listed = asyncio.run(submit())

    assert made == listed
    assert len(made) == 8


def test_a_client_may_be_shared_by_threads(client: oc.Client, served: Engine) -> None:
    barrier = threading.Barrier(6)
    found: list[str] = []

    def create() -> None:
        barrier.wait()
        found.append(client.activities.create(name="x", agent_role="qa").id)

    threads = [threading.Thread(target=create) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(found)) == 6
