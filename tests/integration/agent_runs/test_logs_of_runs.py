"""An agent says what it does while it works: people read it line by line, and it costs the work nothing."""

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
from tenants.context import APP, SYSTEM
from tenants.models import Tenant
from tests.engine import Engine, at_once
from tests.integration.agent_runs.accepted_work import RESULT, Agent, accepted, over, run_of
from tests.integration.test_api_access import problem

pytestmark = pytest.mark.usefixtures("one_at_a_time")

LINES = [
    {"kind": "text", "text": "I look for bees."},
    {"kind": "tool_call", "text": 'search {"q": "bees"}', "at": "2026-05-01T09:30:00.250Z"},
    {"kind": "tool_result", "text": "3 hits"},
    {"kind": "note", "text": ""},
]


def lines(*texts: str) -> dict[str, Any]:
    return {"lines": [{"kind": "text", "text": text} for text in texts]}


def read(client: APIClient, activity_id: UUID, agent: Agent, query: str = "") -> Any:
    answer = client.get(f"/api/v1/activities/{activity_id}/runs/{agent.run_id}/log/{query}")
    assert answer.status_code == 200, answer.content
    return answer.json()


def texts(client: APIClient, activity_id: UUID, agent: Agent) -> list[str]:
    return [line["text"] for line in read(client, activity_id, agent)["results"]]


def test_lines_are_read_in_their_order_by_who_follows(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accepted(engine, acme)
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


def test_pages_lead_to_every_line_wherever_batches_end(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accepted(engine, acme)
    for first in range(1, 16, 5):
        agent.post("log", lines(*map(str, range(first, first + 5))))
    client, found = api(), []

    address: str | None = f"/api/v1/activities/{activity_id}/runs/{agent.run_id}/log/?limit=4"
    while address:
        page = client.get(address).json()
        found += [line["text"] for line in page["results"]]
        address = page["next"]

    assert found == [str(number) for number in range(1, 16)]


def test_what_comes_again_is_kept_once(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accepted(engine, acme)
    agent.post("log", lines("one"))

    again = agent.post("log", lines("one"))
    agent.post("log", lines("two"))
    late = agent.post("log", lines("one"))
    meant = agent.client.post(f"/{agent.address}log/", lines("one"), headers={"Idempotency-Key": "second"})
    repeated = agent.client.post(f"/{agent.address}log/", lines("one"), headers={"Idempotency-Key": "second"})
    other = agent.client.post(f"/{agent.address}log/", lines("three"), headers={"Idempotency-Key": "second"})

    assert [each.json()["duplicate"] for each in (again, late, meant, repeated)] == [True, True, False, True]
    assert again.json() | {"duplicate": False} == {
        "accepted": 1,
        "dropped": 0,
        "last": 1,
        "duplicate": False,
        "stop": False,
    }
    problem(other, 422, "idempotency_key_reused")
    assert texts(api(), activity_id, agent) == ["one", "two", "one"]


def test_lines_that_come_at_once_all_get_a_number_of_their_own(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id, agent = accepted(engine, acme)
    request = engine.agent.calls[-1]

    def say(number: int) -> Any:
        return lambda: Agent(request).post("log", lines(f"{number} a", f"{number} b")).json()

    answers = at_once(*(say(number) for number in range(4)), *(say(number) for number in range(4)))

    assert sorted(answer["duplicate"] for answer in answers) == [False] * 4 + [True] * 4
    found = read(api(), activity_id, agent)["results"]
    assert [line["number"] for line in found] == list(range(1, 9))
    assert sorted(line["text"] for line in found) == sorted(f"{n} {part}" for n in range(4) for part in "ab")
    assert all(one["text"][0] == other["text"][0] for one, other in zip(found[::2], found[1::2], strict=True))


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
def test_every_fault_is_named_by_its_path_and_nothing_is_kept(
    api: Any, engine: Engine, acme: Tenant, settings: Any, body: Any, faults: list[str]
) -> None:
    settings.ORCHESTRATOR_RUN_LOG_LINE_BYTES, settings.ORCHESTRATOR_RUN_LOG_CALL_LINES = 100, 4
    activity_id, agent = accepted(engine, acme)

    answer = agent.post("log", body)

    assert answer.status_code == 400
    assert sorted(error["path"] for error in answer.json()["errors"]) == sorted(faults)
    assert texts(api(), activity_id, agent) == []


def test_a_call_that_is_too_large_is_refused(engine: Engine, acme: Tenant, settings: Any) -> None:
    settings.ORCHESTRATOR_RUN_LOG_CALL_BYTES = 1_000
    _, agent = accepted(engine, acme)

    assert agent.post("log", lines("a" * 1_000)).status_code == 413


@pytest.mark.parametrize("bound", ["lines", "bytes"])
def test_a_log_that_is_full_says_how_much_it_has_not_kept_and_the_run_goes_on(
    api: Any, engine: Engine, acme: Tenant, settings: Any, bound: str
) -> None:
    if bound == "lines":
        settings.ORCHESTRATOR_RUN_LOG_LINES = 3
    else:
        settings.ORCHESTRATOR_RUN_LOG_BYTES = 30
    activity_id, agent = accepted(engine, acme)
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


def test_who_is_over_is_told_to_stop_and_adds_nothing(api: Any, engine: Engine, acme: Tenant) -> None:
    cancelled_id, cancelled = accepted(engine, acme)
    cancelled.post("log", lines("before"))
    cancellation.cancel(acme.pk, cancelled_id, actor="test")
    _, done = accepted(engine, acme)
    done.post("complete", RESULT)

    over(cancelled.post("log", lines("after")), "cancelled")
    over(done.post("log", lines("after")), "completed")

    assert texts(api(), cancelled_id, cancelled) == ["before"]


def test_nobody_else_reads_a_log(api: Any, engine: Engine, acme: Tenant, other_tenant: Tenant) -> None:
    activity_id, agent = accepted(engine, acme)
    other_id, _ = accepted(engine, acme)
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


def test_a_line_costs_one_question_to_postgresql_and_no_write(engine: Engine, acme: Tenant) -> None:
    _, agent = accepted(engine, acme)
    agent.post("log", lines("warm"))

    with CaptureQueriesContext(connections[APP]) as own, CaptureQueriesContext(connections[SYSTEM]) as wide:
        for number in range(3):
            agent.post("log", lines(f"{number}"))

    asked = [query["sql"] for query in (*own.captured_queries, *wide.captured_queries)]
    assert sum('FROM "activities_activityrun"' in sql for sql in asked) == 3
    assert [sql for sql in asked if sql.startswith(("INSERT", "UPDATE", "DELETE"))] == []


@pytest.fixture
def mongodb_comes_and_goes(settings: Any) -> Iterator[Any]:
    """`away()` and `back()`. While it is away nobody waits for long."""
    there, away = settings.MONGODB_URI, "mongodb://127.0.0.1:1/none?appname=logs-away"
    meanwhile = pytest.MonkeyPatch()

    class Switch:
        def away(self) -> None:
            settings.MONGODB_URI = away
            meanwhile.setattr(run_logs, "WRITE_SECONDS", 0.2)
            meanwhile.setattr(outputs, "READ_SECONDS", 0.2)

        def back(self) -> None:
            settings.MONGODB_URI = there
            meanwhile.undo()

    yield Switch()
    meanwhile.undo()
    settings.MONGODB_URI = away
    outputs.collection().database.client.close()


def test_without_mongodb_lines_are_dropped_and_counted_and_the_work_is_done(
    api: Any, engine: Engine, acme: Tenant, mongodb_comes_and_goes: Any
) -> None:
    activity_id, agent = accepted(engine, acme)
    agent.post("log", lines("one"))
    mongodb_comes_and_goes.away()

    answers = [agent.post("log", lines("two", "three")), agent.post("log", lines("four"))]
    address = f"/api/v1/activities/{activity_id}/runs/{agent.run_id}/log/"
    unread = api().get(address)
    mongodb_comes_and_goes.back()
    agent.post("log", lines("five"))

    assert [(a.status_code, a.json()["accepted"], a.json()["dropped"]) for a in answers] == [
        (200, 0, 2), (200, 0, 1),
    ]  # fmt: skip
    problem(unread, 503, "output_unavailable")
    found = read(api(), activity_id, agent)["results"]
    assert [line["text"] for line in found] == [
        "one", "3 lines were not kept: the store of logs did not answer.", "five",
    ]  # fmt: skip
    assert found[1]["kind"] == "note"
    assert agent.post("complete", RESULT).status_code == 200
    assert engine.status(acme, activity_id) == "done"


def test_a_heartbeat_is_dated_and_the_run_says_when_its_time_is_over(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id, agent = accepted(engine, acme)
    client = api()

    def run() -> Any:
        (shown,) = client.get(f"/api/v1/activities/{activity_id}/runs/").json()["results"]
        return shown

    assert run()["last_heartbeat_at"] is None
    agent.post("heartbeat", {"progress": {"percent": 10}})
    first = run()["last_heartbeat_at"]
    agent.post("heartbeat", {"usage": {"input_tokens": 5, "output_tokens": 7}})

    assert first is not None
    assert run()["last_heartbeat_at"] > first
    lasts = datetime.fromisoformat(run()["deadline"]) - datetime.fromisoformat(run()["accepted_at"])
    assert lasts.total_seconds() == run_of(engine, acme, activity_id).timeout_seconds
