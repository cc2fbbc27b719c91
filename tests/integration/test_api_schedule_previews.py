"""Previews of schedules: future times and jobs, days when clocks change, and refusals."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from pipelines.models import Dataset, Schedule, ScheduleExecution, ScheduleJob
from pipelines.schedules import firing, lifecycle
from tenants.context import APP, system_scope, tenant_scope
from tenants.models import Tenant
from tests.answers import problem
from tests.cases import in_one_test
from tests.engine import Engine
from tests.tickers import SCHEDULES, body, tickers

PREVIEW = f"{SCHEDULES}preview/"


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant)
    tickers(tenant, 12, disabled=2)
    return tenant


def preview(client: Any, query: str = "", **members: Any) -> dict[str, Any]:
    answer = client.post(f"{PREVIEW}{query}", body(**members))
    assert answer.status_code == 200, answer.content
    result: dict[str, Any] = answer.json()
    return result


def on(result: dict[str, Any], day: str) -> list[str]:
    """Return the times of a day, in the zone of the schedule."""
    return [moment[11:] for moment in result["fires_at_local"] if moment.startswith(day)]


@in_one_test(("policy", "times"), [("shift", ["03:00:00-04:00"]), ("skip", [])])
def test_a_time_that_clocks_skip_is_shifted_or_skipped(
    api: Any, acme: Tenant, policy: str, times: list[str]
) -> None:
    result = preview(
        api(),
        cron="30 2 * * *",
        timezone="America/New_York",
        start_at="2027-03-13T00:00:00-05:00",
        dst_gap=policy,
    )

    assert on(result, "2027-03-14") == times
    assert on(result, "2027-03-13") == ["02:30:00-05:00"]
    assert on(result, "2027-03-15") == ["02:30:00-04:00"]


@in_one_test(
    ("policy", "times"),
    [
        ("first", ["01:30:00-04:00"]),
        ("second", ["01:30:00-05:00"]),
        ("both", ["01:30:00-04:00", "01:30:00-05:00"]),
    ],
)
def test_a_time_that_clocks_repeat_fires_as_chosen(
    api: Any, acme: Tenant, policy: str, times: list[str]
) -> None:
    result = preview(
        api(),
        cron="30 1 * * *",
        timezone="America/New_York",
        start_at="2027-11-06T00:00:00-04:00",
        dst_fold=policy,
    )

    assert on(result, "2027-11-07") == times


def test_a_preview_returns_times_description_and_jobs_and_writes_nothing(api: Any, acme: Tenant) -> None:
    params = {"tickerId": "db:ticker:all:id?enabled=true&batchSize=5&staggerDelay=2000", "deep": True}

    result = preview(api(), "?count=2", start_at="2027-05-01T00:00:00Z", params=params)

    assert result == {
        "fires_at": ["2027-05-01T12:00:00Z", "2027-05-02T12:00:00Z"],
        "fires_at_local": ["2027-05-01T08:00:00-04:00", "2027-05-02T08:00:00-04:00"],
        "timezone": "America/New_York",
        "in_words": "every day at 08:00, from 2027-04-30 20:00 (America/New_York)",
        "jobs": 12, "batches": 3, "ends_after_seconds": 4.0,
        "sample": [{"deep": True, "tickerId": f"T{number}"} for number in range(5)],
        "errors": [], "notes": [],
    }  # fmt: skip
    assert api().get(SCHEDULES).json()["results"] == []


def test_a_preview_says_how_many_jobs_of_a_batch_the_limits_allow_at_once(
    engine: Engine, api: Any, acme: Tenant
) -> None:
    params = {"tickerId": "db:ticker:all:id?enabled=true&batchSize=5"}

    engine.serve(acme, "qa", max_concurrency=3)
    assert preview(api(), params=params)["notes"] == [
        "At most 3 of the 5 jobs of a batch run at the same time, because of the limits for qa."
    ]
    engine.serve(acme, "qa", max_concurrency=5)
    assert preview(api(), params=params)["notes"] == []
    with system_scope():
        Tenant.objects.filter(pk=acme.pk).update(max_concurrency=2)
    (note,) = preview(api(), params=params)["notes"]
    assert "At most 2 of" in note
    assert preview(api(), params={"tickerId": "db:ticker:T1:id"})["notes"] == []


def test_a_preview_agrees_with_the_execution(api: Any, acme: Tenant) -> None:
    client = api()
    schedule = client.post(
        SCHEDULES, body(params={"t": "db:ticker:all:id?batchSize=5"}, overlap="allow")
    ).json()
    announced = client.get(f"{schedule['link']}preview/?count=3").json()

    for text in announced["fires_at"]:
        for execution in firing.fire(acme.pk, schedule["id"], now=datetime.fromisoformat(text)):
            lifecycle.expand(acme.pk, execution)

    with tenant_scope(acme.pk):
        executions = list(ScheduleExecution.objects.order_by("nominal_at"))
        jobs = list(ScheduleJob.objects.filter(execution=executions[0]).order_by("ordinal"))
    assert [execution.nominal_at for execution in executions] == [
        datetime.fromisoformat(text) for text in announced["fires_at"]
    ]
    assert schedule["next_run_at"] == announced["fires_at"][0]
    assert (len(jobs), len({job.batch for job in jobs})) == (announced["jobs"], announced["batches"])
    assert [job.params for job in jobs[:5]] == announced["sample"]
    assert (jobs[-1].due_at - jobs[0].due_at).total_seconds() == announced["ends_after_seconds"]


def test_previewed_times_begin_at_start_at_or_now_or_the_requested_time(api: Any, acme: Tenant) -> None:
    client = api()
    started = {"cron": None, "interval_ms": 86_400_000, "start_at": "2025-01-01T00:00:00Z"}
    schedule = client.post(SCHEDULES, body(**started)).json()

    assert preview(client, "?count=1", **started)["fires_at"] == ["2025-01-01T00:00:00Z"]
    for after in ("2030-01-01T00:00:00Z", "2030-01-01T02:00:00%2B02:00", "2030-01-01T02:00:00+02:00"):
        announced = preview(client, f"?count=1&after={after}", **started)["fires_at"]
        assert announced == ["2030-01-02T00:00:00Z"], after
    assert preview(client, "?count=1")["fires_at"][0] > datetime.now(UTC).isoformat()
    assert (
        client.get(f"{schedule['link']}preview/?count=1").json()["fires_at"][0]
        > datetime.now(UTC).isoformat()
    )
    assert len(client.get(f"{schedule['link']}preview/").json()["fires_at"]) == 5


def test_errors_of_target_and_parameters_are_listed(api: Any, acme: Tenant) -> None:
    result = preview(api(), name=None, agent_role="nobody", params={"a": "db:tickr:all:id"})

    assert len(result["fires_at"]) == 5
    assert {error["path"] for error in result["errors"]} == {"agent_role", "params.a"}
    assert result["jobs"] == 0


def test_times_can_be_previewed_without_a_target(api: Any, acme: Tenant) -> None:
    answer = api().post(PREVIEW, {"repeat": "repeating", "cron": "0 0 29 2 *"})

    assert [text[:10] for text in answer.json()["fires_at"][:2]] == ["2028-02-29", "2032-02-29"]
    assert [error["path"] for error in answer.json()["errors"]] == ["target_type"]


@in_one_test(
    ("members", "note"),
    [
        ({"enabled": False}, "It is switched off"),
        ({"end_at": "2026-01-01T00:00:00Z"}, "All its times have passed"),
        ({"repeat": "once", "cron": None, "start_at": "2024-01-15T10:00:00Z"}, "it fires as soon as it is saved"),
        ({"repeat": "once", "cron": None, "start_at": "2024-01-15T10:00:00Z", "catch_up": "none"}, "the time is recorded as skipped"),
    ],
)  # fmt: skip
def test_unusual_times_are_noted(api: Any, acme: Tenant, members: dict[str, Any], note: str) -> None:
    assert note in preview(api(), **members)["notes"][0]


def test_the_preview_of_a_paused_schedule_says_so(api: Any, acme: Tenant) -> None:
    client = api()
    link = client.post(SCHEDULES, body()).json()["link"]

    client.post(f"{link}pause/")
    paused = client.get(f"{link}preview/").json()["notes"]
    client.post(f"{link}resume/")

    assert paused[0].startswith("It is paused")
    assert client.get(f"{link}preview/").json()["notes"] == []


@pytest.mark.parametrize(
    ("paused", "noted"),
    [
        (
            "tenant",
            ["The tenant is paused, so it does not fire", "The tenant is paused, so it does not fire"],
        ),
        (
            "queues/qa",
            [
                "The role qa is paused: the schedule fires, but work",
                "The role qa is paused: the schedule fires, but work",
            ],
        ),
        ("pipelines/flow", ["The pipeline flow is paused: the schedule fires, but work"]),
    ],
)
def test_a_preview_names_pauses_of_the_tenant_and_of_what_its_work_needs(
    api: Any, acme: Tenant, paused: str, noted: list[str]
) -> None:
    client = api()
    steps = [{"id": "a", "agent_role": "qa"}, {"id": "b", "agent_role": "qa"}]
    client.post("/api/v1/pipelines/", {"key": "flow", "name": "Flow", "steps": steps})
    of_agent = client.post(SCHEDULES, body()).json()["link"]
    of_pipeline = body(name="Runs", target_type="pipeline", agent_role=None, pipeline="flow")

    def notes() -> list[str]:
        saved = client.get(f"{of_agent}preview/").json()["notes"]
        return [*client.post(PREVIEW, of_pipeline).json()["notes"], *saved]

    before = notes()
    client.post(f"/api/v1/{paused}/pause/")
    during = notes()
    client.post(f"/api/v1/{paused}/resume/")

    assert (before, notes()) == ([], [])
    assert len(during) == len(noted)
    assert all(note.startswith(start) for note, start in zip(during, noted, strict=True)), during


@in_one_test(
    "query",
    [
        "?count=0", "?count=101", "?count=x", "?count=1&count=2", "?after=now", "?colour=1", "?after=9999-12-31T23:59:59-14:00",
        "?after=0001-01-01T00:00:00%2B14:00",
    ],
)  # fmt: skip
def test_invalid_parameters_of_a_preview_are_refused(api: Any, acme: Tenant, query: str) -> None:
    problem(api().post(f"{PREVIEW}{query}", body()), 400, "validation_failed")


def test_references_that_were_deleted_since_are_listed_as_errors(api: Any, acme: Tenant) -> None:
    client = api()
    link = client.post(SCHEDULES, body(params={"t": "db:ticker:all:id"})).json()["link"]
    with tenant_scope(acme.pk):
        Schedule.objects.update(agent_role="gone")
        Dataset.objects.all().delete()

    result = client.get(f"{link}preview/").json()

    assert len(result["fires_at"]) == 5
    assert {error["path"] for error in result["errors"]} == {"agent_role", "params.t"}


def test_previews_do_not_read_other_tenants_and_a_viewer_cannot_preview_an_unsaved_schedule(
    api: Any, acme: Tenant, other_tenant: Tenant
) -> None:
    link = api().post(SCHEDULES, body()).json()["link"]

    assert api("viewer").get(f"{link}preview/").status_code == 200
    problem(api("viewer").post(PREVIEW, body()), 403, "forbidden")
    stranger = api("operator", tenant=other_tenant)
    assert preview(stranger, params={"t": "db:ticker:all:id"})["errors"][0]["message"].startswith(
        "character 4: unknown table"
    )


CRONS = [
    "0 8 * * *; DROP TABLE pipelines_schedule", "$(reboot)", "* * * * * *", "*/0 * * * *", "@reboot", "0 0 31 2 *", "\x00", "9" * 200,
    "0-99999999999 * * * *", "1,,2 * * * *", "../../etc/passwd", "\u0660 8 * * *", "{{ 7*7 }}", "0 8 * * " + "MON," * 60,
]  # fmt: skip
ZONES = [
    "../../etc/passwd",
    "/etc/localtime",
    "America/New_York\x00",
    "UTC; DROP TABLE x",
    "",
    "x" * 10_000,
    "posixrules/..",
    "Europe/../UTC",
]
SOURCES = [
    "db:ticker:all:id?filter={\"id\":{\"$where\":\"1\"}}", "db:ticker'; DROP TABLE x;--:all:id", "db:ticker:all:id); DELETE FROM x",
    "db:ticker:all:pk__in", "db:ticker:all:dataset__tenant__slug", "db:ticker:all:id?id__gt=1", "db:auth_user:all:password",
    "file:../../etc/passwd:all:id", "db:ticker:all:id?limit=-1", "db:ticker:all:id?batchSize=1e9", "db:ticker:all:id?filter={",
    "db:ticker:all:id?filter={\"$or\":[]}", "api:http:all:id", "cache:*:all:id", "db:ticker:all:*",
]  # fmt: skip


HOSTILE = [
    *({"cron": text} for text in CRONS),
    *({"timezone": text} for text in ZONES),
    *({"params": {"a": text}} for text in SOURCES),
    {"cron": ["0 8 * * *"]},
    {"timezone": {"name": "UTC"}},
    {"params": {"a": 'db:ticker:all:id?filter={"id":' + "[" * 5000 + "}"}},
]


def test_hostile_text_is_refused_and_executes_nothing(api: Any, acme: Tenant) -> None:
    client = api()
    odd: list[Any] = []

    for broken in HOSTILE:
        with CaptureQueriesContext(connections[APP]) as captured:
            answer = client.post(SCHEDULES, body(**broken))
        statements = [query["sql"] for query in captured.captured_queries]
        # It looks up the token and the names of tables, and reads no row of these tables.
        touching_rows = [text for text in statements if re.search("datasetrow|DROP|DELETE|INSERT INTO", text)]
        if answer.status_code != 400 or len(statements) > 15 or touching_rows:
            odd.append((broken, answer.status_code, len(statements), touching_rows))

    assert odd == []
