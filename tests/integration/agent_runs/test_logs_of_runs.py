"""Logs of runs: agents add lines while they work, people read them, and a lost log never fails a run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from activities import cancellation, outputs, run_logs
from activities.run_tokens import RunToken
from tenants.context import APP, SYSTEM
from tenants.models import Tenant
from tests.accepted_work import RESULT, AgentClient, accept_work, assert_superseded
from tests.answers import problem
from tests.engine import Engine, eventually, no_threads, simultaneously

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")

LINES = [
    {"kind": "text", "text": "I look for bees."},
    {"kind": "tool_call", "text": 'search {"q": "bees"}', "at": "2026-05-01T09:30:00.250Z"},
    {"kind": "tool_result", "text": "3 hits"},
    {"kind": "note", "text": ""},
]


def lines(*texts: str) -> dict[str, Any]:
    return {"lines": [{"kind": "text", "text": text} for text in texts]}


def read(client: APIClient, activity_id: UUID, agent: AgentClient, query: str = "") -> Any:
    answer = client.get(f"/api/v1/activities/{activity_id}/runs/{agent.run_id}/log/{query}")
    assert answer.status_code == 200, answer.content
    return answer.json()


def texts(client: APIClient, activity_id: UUID, agent: AgentClient) -> list[str]:
    return [line["text"] for line in read(client, activity_id, agent)["results"]]


def test_lines_are_read_in_order_and_from_a_cursor(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme)
    before = datetime.now(UTC)

    answer = agent.post("log", {"lines": LINES})

    assert (answer.status_code, answer.json()) == (
        200, {"accepted": 4, "dropped": 0, "last": 4, "duplicate": False, "stop": False}
    )  # fmt: skip
    page = read(api("viewer"), activity_id, agent)
    assert [(line["number"], line["kind"], line["text"]) for line in page["results"]] == [
        (number, line["kind"], line["text"]) for number, line in enumerate(LINES, 1)
    ]
    assert page["results"][1]["at"] == "2026-05-01T09:30:00.250000Z"
    assert abs(datetime.fromisoformat(page["results"][0]["at"]) - before).total_seconds() < 10
    assert (page["cursor"], page["next"], page["dropped"], page["ended"]) == (4, None, 0, False)

    agent.post("log", lines("Found them."))
    agent.post("complete", RESULT)

    rest = read(api("viewer"), activity_id, agent, f"?after={page['cursor']}")
    assert [(line["number"], line["text"]) for line in rest["results"]] == [(5, "Found them.")]
    assert (rest["cursor"], rest["ended"]) == (5, True)
    assert read(api("viewer"), activity_id, agent, "?after=5")["results"] == []


def test_pages_contain_every_line_once_wherever_batches_end(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme)
    for first in range(1, 16, 5):
        agent.post("log", lines(*map(str, range(first, first + 5))))
    client, texts_read = api(), []

    address: str | None = f"/api/v1/activities/{activity_id}/runs/{agent.run_id}/log/?limit=4"
    while address:
        page = client.get(address).json()
        texts_read += [line["text"] for line in page["results"]]
        address = page["next"]

    assert texts_read == [str(number) for number in range(1, 16)]


def test_repeated_lines_are_stored_once(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme)
    agent.post("log", lines("one"))

    again = agent.post("log", lines("one"))
    agent.post("log", lines("two"))
    late = agent.post("log", lines("one"))
    with_key = agent.client.post(f"/{agent.address}log/", lines("one"), headers={"Idempotency-Key": "second"})
    repeated = agent.client.post(f"/{agent.address}log/", lines("one"), headers={"Idempotency-Key": "second"})
    other = agent.client.post(f"/{agent.address}log/", lines("three"), headers={"Idempotency-Key": "second"})

    assert [each.json()["duplicate"] for each in (again, late, with_key, repeated)] == [
        True,
        True,
        False,
        True,
    ]
    assert again.json() | {"duplicate": False} == {
        "accepted": 1,
        "dropped": 0,
        "last": 1,
        "duplicate": False,
        "stop": False,
    }
    problem(other, 422, "idempotency_key_reused")
    assert texts(api(), activity_id, agent) == ["one", "two", "one"]


def test_concurrent_lines_get_different_numbers(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme)
    request = engine.agent.calls[-1]

    def add_lines(number: int) -> Any:
        return lambda: AgentClient(request).post("log", lines(f"{number} a", f"{number} b")).json()

    answers = simultaneously(
        *(add_lines(number) for number in range(4)), *(add_lines(number) for number in range(4))
    )

    assert sorted(answer["duplicate"] for answer in answers) == [False] * 4 + [True] * 4
    log_lines = read(api(), activity_id, agent)["results"]
    assert [line["number"] for line in log_lines] == list(range(1, 9))
    assert sorted(line["text"] for line in log_lines) == sorted(
        f"{n} {part}" for n in range(4) for part in "ab"
    )
    assert all(
        one["text"][0] == other["text"][0] for one, other in zip(log_lines[::2], log_lines[1::2], strict=True)
    )


@pytest.mark.parametrize(
    ("body", "faults"),
    [
        ({}, ["lines"]),
        ({"lines": []}, ["lines"]),
        ({"lines": "text"}, ["lines"]),
        ({"lines": [{"kind": "text", "text": "a"}], "more": 1}, ["more"]),
        (
            {
                "lines": [
                    {"kind": "shout", "text": "a"},
                    {"kind": "text"},
                    {"kind": "text", "text": 5, "at": "noon"},
                    {"kind": "note", "text": "a", "by": 1},
                ]
            },
            ["lines[0].kind", "lines[1].text", "lines[2].at", "lines[2].text", "lines[3].by"],
        ),
        ({"lines": [{"kind": "text", "text": "a" * 101}]}, ["lines[0].text"]),
        ({"lines": [{"kind": "text", "text": "a"}] * 5}, ["lines"]),
        ({"lines": [{"kind": "text", "text": "a\x00b"}]}, ["lines[0].text"]),
    ],
)  # fmt: skip
def test_malformed_lines_are_refused_with_their_paths_and_not_stored(
    api: Any, engine: Engine, acme: Tenant, settings: Any, body: Any, faults: list[str]
) -> None:
    settings.ORCHESTRATOR_RUN_LOG_LINE_BYTES, settings.ORCHESTRATOR_RUN_LOG_CALL_LINES = 100, 4
    activity_id, agent = accept_work(engine, acme)

    answer = agent.post("log", body)

    assert answer.status_code == 400
    assert sorted(error["path"] for error in answer.json()["errors"]) == sorted(faults)
    assert texts(api(), activity_id, agent) == []


def test_too_large_a_batch_of_lines_is_refused(engine: Engine, acme: Tenant, settings: Any) -> None:
    settings.ORCHESTRATOR_RUN_LOG_CALL_BYTES = 1_000
    _, agent = accept_work(engine, acme)

    assert agent.post("log", lines("a" * 1_000)).status_code == 413


@pytest.mark.parametrize("bound", ["lines", "bytes"])
def test_a_full_log_counts_dropped_lines_and_the_run_continues(
    api: Any, engine: Engine, acme: Tenant, settings: Any, bound: str
) -> None:
    if bound == "lines":
        settings.ORCHESTRATOR_RUN_LOG_LINES = 3
    else:
        settings.ORCHESTRATOR_RUN_LOG_BYTES = 30
    activity_id, agent = accept_work(engine, acme)
    agent.post("log", lines("a" * 10, "b" * 10))

    part = agent.post("log", lines("c" * 10, "d" * 10, "e"))
    later = [agent.post("log", lines("f", "g")) for _ in range(2)]

    assert part.json() == {"accepted": 1, "dropped": 2, "last": 4, "duplicate": False, "stop": False}
    assert [each.json()["accepted"] for each in later] == [0, 0]
    assert [each.json()["duplicate"] for each in later] == [False, True]
    page = read(api(), activity_id, agent)
    assert [(line["number"], line["kind"]) for line in page["results"]] == [
        (1, "text"), (2, "text"), (3, "text"), (4, "note"),
    ]  # fmt: skip
    assert page["results"][-1]["text"].startswith("4 lines were not kept: ")
    assert (page["dropped"], page["cursor"]) == (4, 4)
    agent.post("log", lines("h"))
    assert read(api(), activity_id, agent, "?after=4") | {"ended": False} == {
        "next": None, "previous": None, "results": [], "cursor": 4, "dropped": 5, "ended": False,
    }  # fmt: skip
    assert agent.post("complete", RESULT).status_code == 200


def test_an_ended_run_adds_no_lines_and_is_told_to_stop(api: Any, engine: Engine, acme: Tenant) -> None:
    cancelled_id, cancelled = accept_work(engine, acme)
    cancelled.post("log", lines("before"))
    cancellation.cancel(acme.pk, cancelled_id, actor="test")
    _, completed = accept_work(engine, acme)
    completed.post("complete", RESULT)

    assert_superseded(cancelled.post("log", lines("after")), "cancelled")
    assert_superseded(completed.post("log", lines("after")), "completed")

    assert texts(api(), cancelled_id, cancelled) == ["before"]


def test_an_agent_that_has_suspended_its_work_adds_its_last_lines_and_is_told_to_stop(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id, agent = accept_work(engine, acme)
    agent.post("tools/report_blocker", {"type": "outage", "message": "The site is down."})

    answer = agent.post("log", lines("I wait."))

    assert answer.json() == {"accepted": 1, "dropped": 0, "last": 1, "duplicate": False, "stop": True}
    assert texts(api(), activity_id, agent) == ["I wait."]


def test_a_log_is_not_found_for_other_tenants_and_activities(
    api: Any, engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    activity_id, agent = accept_work(engine, acme)
    other_id, _ = accept_work(engine, acme)
    agent.post("log", lines("secret"))

    place = f"/api/v1/activities/{activity_id}/runs/{agent.run_id}/log/"
    stranger = api(tenant=other_tenant)
    for client, address in (
        (stranger, place),
        (api(), f"/api/v1/activities/{other_id}/runs/{agent.run_id}/log/"),
        (api(), f"/api/v1/activities/{activity_id}/runs/{activity_id}/log/"),
    ):
        assert client.get(address).status_code == 404
    assert run_logs.read(other_tenant.pk, agent.run_id).lines == []
    for query in ("?after=-1", "?after=x", "?limit=0", "?before=3", "?after=1&after=2"):
        assert api().get(f"{place}{query}").status_code == 400


def test_a_line_takes_one_query_to_postgresql_and_no_write(engine: Engine, acme: Tenant) -> None:
    _, agent = accept_work(engine, acme)
    agent.post("log", lines("warm"))

    with CaptureQueriesContext(connections[APP]) as own, CaptureQueriesContext(connections[SYSTEM]) as wide:
        for number in range(3):
            agent.post("log", lines(f"{number}"))

    queries = [query["sql"] for query in (*own.captured_queries, *wide.captured_queries)]
    assert sum('FROM "activities_activityrun"' in sql for sql in queries) == 3
    assert [sql for sql in queries if sql.startswith(("INSERT", "UPDATE", "DELETE"))] == []


@pytest.fixture
def mongodb_switch(settings: Any) -> Iterator[Any]:
    """Call `stop()` and `start()`. While MongoDB is stopped, timeouts are short."""
    working, unreachable = settings.MONGODB_URI, "mongodb://127.0.0.1:1/none?appname=logs-away"
    patch = pytest.MonkeyPatch()

    class Switch:
        def stop(self) -> None:
            settings.MONGODB_URI = unreachable
            patch.setattr(run_logs, "WRITE_SECONDS", 0.2)
            patch.setattr(outputs, "READ_SECONDS", 0.2)

        def start(self) -> None:
            settings.MONGODB_URI = working
            patch.undo()

    yield Switch()
    patch.undo()
    settings.MONGODB_URI = unreachable
    outputs.collection().database.client.close()


def test_without_mongodb_lines_are_dropped_and_counted_and_the_run_completes(
    api: Any, engine: Engine, acme: Tenant, mongodb_switch: Any
) -> None:
    activity_id, agent = accept_work(engine, acme)
    agent.post("log", lines("one"))
    mongodb_switch.stop()

    answers = [agent.post("log", lines("two", "three")), agent.post("log", lines("four"))]
    address = f"/api/v1/activities/{activity_id}/runs/{agent.run_id}/log/"
    unavailable = api().get(address)
    mongodb_switch.start()
    agent.post("log", lines("five"))

    assert [(a.status_code, a.json()["accepted"], a.json()["dropped"]) for a in answers] == [
        (200, 0, 2), (200, 0, 1),
    ]  # fmt: skip
    problem(unavailable, 503, "output_unavailable")
    log_lines = read(api(), activity_id, agent)["results"]
    assert [line["text"] for line in log_lines] == [
        "one", "3 lines were not kept: the store of logs did not answer.", "five",
    ]  # fmt: skip
    assert log_lines[1]["kind"] == "note"
    assert agent.post("complete", RESULT).status_code == 200
    assert engine.status(acme, activity_id) == "done"


def test_lines_are_written_as_soon_as_a_thread_can_be_started(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme)
    writer, run = run_logs.Writer(), RunToken(acme.pk, activity_id, agent.run_id, fence=1)
    with no_threads():
        writer.add(run, "text", "I look for bees.")

    writer.add(run, "text", "There are none.")

    eventually(lambda: texts(api("viewer"), activity_id, agent) == ["I look for bees.", "There are none."])


def test_a_run_shows_its_last_heartbeat_and_its_deadline(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme)
    client = api()

    def run() -> Any:
        (only_run,) = client.get(f"/api/v1/activities/{activity_id}/runs/").json()["results"]
        return only_run

    assert run()["last_heartbeat_at"] is None
    agent.post("heartbeat", {"progress": {"percent": 10}})
    first = run()["last_heartbeat_at"]
    agent.post("heartbeat", {"usage": {"input_tokens": 5, "output_tokens": 7}})

    assert first is not None
    assert run()["last_heartbeat_at"] > first
    time_left = datetime.fromisoformat(run()["deadline"]) - datetime.fromisoformat(run()["accepted_at"])
    assert time_left.total_seconds() == engine.runs(acme, activity_id)[-1].timeout_seconds
