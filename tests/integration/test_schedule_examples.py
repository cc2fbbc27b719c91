"""The example schedules create exactly the documented jobs, and the examples and defaults of docs/schedules.md are right."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from agents import configuration
from pipelines import timing
from pipelines.models import PipelineRun, Schedule, ScheduleExecution, ScheduleJob
from pipelines.schedules import editing, firing, lifecycle, preview
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine
from tests.tickers import SCHEDULES

EXAMPLES = Path(__file__).parents[2] / "examples" / "schedules"
FILES = sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in (".yaml", ".json"))

#: Per example: jobs, batches, milliseconds between two batches, parameters of the first job.
EXPECTED: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "hundred-tickers.yaml": (100, 10, 1000, {"tickerId": "AAPL"}),
    "one-ticker.yaml": (1, 1, 0, {"tickerId": "AAPL"}),
    "json-filter.yaml": (60, 6, 1000, {"tickerId": "MSFT"}),
    "batches-of-five.yaml": (50, 10, 1000, {"tickerId": "AAPL"}),
    "user-emails.json": (3, 1, 0, {"email": "ann@example.com", "template": "weekly"}),
    "daily-newsletter.yaml": (50, 10, 2000, {"tickerId": "AAPL"}),
    "one-time-data-collection.yaml": (1, 1, 0, {"tickerId": "AAPL", "source": "news"}),
    "weekly-entity-graph-refresh.yaml": (100, 10, 1000, {"tickerId": "AAPL", "refreshEntityGraph": True}),
}


def load(tenant: Tenant, name: str) -> list[str]:
    out = StringIO()
    call_command("load_schedule", EXAMPLES / name, tenant=tenant.slug, stdout=out)
    configuration.forget()
    return out.getvalue().splitlines()


def only_schedule(tenant: Tenant) -> Schedule:
    with tenant_scope(tenant.pk):
        return Schedule.objects.select_related("pipeline").get()


def test_every_example_has_expected_figures() -> None:
    assert set(FILES) == set(EXPECTED)


@pytest.mark.parametrize("name", FILES)
def test_an_example_creates_exactly_the_jobs_of_its_preview(
    name: str, engine: Engine, tenant: Tenant
) -> None:
    jobs, batches, stagger, first = EXPECTED[name]
    output = load(tenant, name)
    schedule = only_schedule(tenant)
    forecast = preview.forecast_saved(schedule)
    due = schedule.next_run_at
    assert output[-1].endswith("created")
    assert due is not None

    for execution in firing.fire(tenant.pk, schedule.pk, now=max(due, datetime.now(UTC))):
        lifecycle.expand(tenant.pk, execution)

    with tenant_scope(tenant.pk):
        execution = ScheduleExecution.objects.get()
        rows = list(ScheduleJob.objects.order_by("ordinal"))
    assert (forecast.jobs, forecast.batches, forecast.errors) == (jobs, batches, [])
    assert (execution.jobs_created, execution.jobs_enqueued) == (jobs, jobs)
    assert rows[0].params == forecast.sample[0] == first
    assert len({row.batch for row in rows}) == batches
    begin = rows[0].due_at
    assert {row.due_at - begin for row in rows} == {
        index * timedelta(milliseconds=stagger) for index in range(batches)
    }
    assert max(row.due_at for row in rows) - begin == forecast.ends_after


def test_the_newsletter_has_one_run_per_ticker(engine: Engine, tenant: Tenant) -> None:
    load(tenant, "daily-newsletter.yaml")
    schedule = only_schedule(tenant)
    assert schedule.next_run_at is not None

    for execution in firing.fire(tenant.pk, schedule.pk, now=schedule.next_run_at):
        lifecycle.expand(tenant.pk, execution)

    with tenant_scope(tenant.pk):
        runs = list(PipelineRun.objects.filter(schedule_id=schedule.pk))
    assert len({run.params["tickerId"] for run in runs}) == 50


def test_loading_a_file_again_changes_nothing(engine: Engine, tenant: Tenant) -> None:
    load(tenant, "daily-newsletter.yaml")

    again = load(tenant, "daily-newsletter.yaml")

    assert again == [
        "dataset ticker: filled",
        "pipeline newsletter-generation-pipeline: unchanged",
        "schedule Daily Newsletter for All Tickers: unchanged",
    ]


def test_a_file_may_switch_off_a_pipeline_that_is_otherwise_unchanged(
    engine: Engine, tenant: Tenant, tmp_path: Path
) -> None:
    flow = {"key": "flow", "name": "Flow", "steps": [{"id": "a", "agent_role": "qa"}]}
    file = tmp_path / "flow.json"

    reports = []
    for enabled in (True, False, False):
        file.write_text(json.dumps({"pipelines": [{**flow, "enabled": enabled}]}))
        reports += load(tenant, str(file))

    assert reports == ["pipeline flow: version 1", "pipeline flow: version 2", "pipeline flow: unchanged"]


def test_faults_of_a_file_have_their_paths(
    engine: Engine, tenant: Tenant, tmp_path: Path, capsys: Any
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(
        "schedules:\n  - {name: A, repeat: repeating, cron: '61 * * * *', target_type: agent, agent_role: qa,"
        " params: {a: 'db:none:all:id'}}\n"
        "  - {name: B, repeat: once, target_type: agent, agent_role: qa}\n"
    )

    with pytest.raises(SystemExit):
        call_command("load_schedule", file, tenant=tenant.slug)

    output = capsys.readouterr().err
    assert "schedules[0].cron: " in output
    assert "schedules[0].params.a: character 4: unknown table" in output
    assert "schedules[1].start_at: is missing" in output
    with tenant_scope(tenant.pk):
        assert not Schedule.objects.exists()


def test_the_weekly_refresh_fires_at_two_and_after_the_change_to_summer_time_at_three(
    engine: Engine, tenant: Tenant
) -> None:
    load(tenant, "weekly-entity-graph-refresh.yaml")
    rule = only_schedule(tenant).timing()

    times = timing.times(rule, after=datetime(2027, 3, 6, tzinfo=UTC), limit=3)

    assert [f"{moment:%a %d %b %H:%M}" for moment in times] == [
        "Sun 07 Mar 07:00",
        "Sun 14 Mar 07:00",
        "Sun 21 Mar 06:00",
    ]


def test_the_one_time_example_in_the_past_fires_once_at_once(engine: Engine, tenant: Tenant) -> None:
    load(tenant, "one-time-data-collection.yaml")
    schedule = only_schedule(tenant)

    execution_ids = firing.fire(tenant.pk, schedule.pk)

    assert schedule.next_run_at == schedule.start_at == datetime(2024, 1, 15, 10, tzinfo=UTC)
    assert len(execution_ids) == 1
    assert (only_schedule(tenant).enabled, only_schedule(tenant).next_run_at) == (False, None)


# docs/schedules.md


def _document() -> str:
    return (EXAMPLES.parents[1] / "docs" / "schedules.md").read_text(encoding="utf-8")


def test_every_example_of_the_document_can_be_saved(api: Any, engine: Engine, tenant: Tenant) -> None:
    load(tenant, "daily-newsletter.yaml")
    examples = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", _document(), re.DOTALL)]
    client = api()

    answers = [client.post(SCHEDULES, example) for example in examples]

    assert len(examples) >= 3
    assert [answer.content for answer in answers if answer.status_code != 201] == []
    previews = [client.get(f"{answer.json()['link']}preview/").json() for answer in answers]
    assert [times["jobs"] for times in previews] == [50, 33, 1]
    assert [times["errors"] for times in previews] == [[], [], []]


def test_the_document_lists_every_member_with_its_default(api: Any, engine: Engine, tenant: Tenant) -> None:
    table = _document().partition("<!-- defaults -->")[2].partition("<!-- end of defaults -->")[0]
    output = dict(re.findall(r"^\| `(\w+)` \| (\S.*?) \|", table, re.MULTILINE))
    minimal = {
        "name": "A",
        "repeat": "repeating",
        "cron": "@daily",
        "target_type": "agent",
        "agent_role": "qa",
    }

    schedule = api().post(SCHEDULES, minimal).json()

    defaults = {name: json.loads(text.strip("`")) for name, text in output.items() if text != "-"}
    assert set(output) == set(editing.MEMBERS)
    assert {name: schedule[name] for name in defaults if name not in minimal} == {
        name: value for name, value in defaults.items() if name not in minimal
    }
