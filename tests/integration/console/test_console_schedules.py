"""The pages of schedules: next times, outcomes of past times, and previews that write nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.http import HttpResponse

from console import schedules
from pipelines.models import Schedule
from pipelines.schedules import editing
from tenants.context import system_scope, tenant_scope
from tenants.models import Tenant
from tests.browsing import visible_text
from tests.console_user import Person, refusal_notice, send_form
from tests.engine import Engine
from tests.forms import Form, forms_of
from tests.scheduling import HOUR, NOON, executions, fire, make_pipeline, make_schedule, reload, tickers

SCHEDULES = "/schedules/"


@pytest.fixture
def hourly(engine: Engine, tenant: Tenant) -> Schedule:
    """An hourly schedule of `qa`."""
    return make_schedule(tenant, "refresh")


@pytest.fixture
def address(hourly: Schedule) -> str:
    return f"{SCHEDULES}{hourly.pk}/"


def test_the_list_describes_times_in_words_and_shows_the_next(
    engine: Engine, tenant: Tenant, ann: Person
) -> None:
    make_schedule(tenant, "report", cron="30 3 * * 1", timezone="America/New_York")
    make_schedule(tenant, "sleeping", enabled=False)
    make_schedule(tenant, "late", looked_until=datetime.now(UTC) - timedelta(hours=3))
    make_schedule(tenant, "early", cron="0 0 1 1 *", looked_until=datetime.now(UTC))

    text = visible_text(ann.get(SCHEDULES))

    assert "at 03:30, only on Monday (America/New_York)" in text
    assert "sleeping every hour (UTC)" in text
    assert "disabled" in text
    assert re.search(r"late every hour \(UTC\) .*? due 2 h( \d+ min)? ago", text)
    assert re.search(r"early at 00:00.*? in \d+ (d|h)", text)
    assert "sleeping" not in visible_text(ann.get(f"{SCHEDULES}?state=on"))
    assert "report" not in visible_text(ann.get(f"{SCHEDULES}?search=sleep"))


def test_the_calendar_shows_four_weeks_with_first_times_and_counts(tenant: Tenant) -> None:
    make_schedule(tenant, "noon", cron="0 12 * * 2")
    make_schedule(tenant, "often", cron="*/10 * * * *")
    make_schedule(tenant, "off", enabled=False)

    weeks = schedules.listing(tenant.pk, now=NOON)["weeks"]  # a Monday

    assert [week[0].on.isoformat() for week in weeks] == [
        "2026-03-02",
        "2026-03-09",
        "2026-03-16",
        "2026-03-23",
    ]
    monday, tuesday = weeks[0][0], weeks[0][1]
    assert monday.is_today
    assert [(mark.schedule.name, mark.first) for mark in monday.marks] == [("often", "12:10")]
    assert [(mark.schedule.name, mark.first, mark.often) for mark in tuesday.marks] == [
        ("often", "00:00", "\u00d724+"),
        ("noon", "12:00", ""),
    ]


def test_past_times_show_their_outcome_and_reason(hourly: Schedule, address: str, ann: Person) -> None:
    fire(hourly, NOON + 3 * HOUR)

    text = visible_text(ann.get(address))

    assert "2026-03-02 15:00:00 UTC fired" in text
    assert "2026-03-02 13:00:00 UTC" in text
    assert "skipped" in text
    page = ann.get(address)
    assert "Priority normal (10)" in visible_text(page), "as on the page of an activity"
    firings = page.context["firings"]
    assert {firing.reason for firing in firings if firing.state == "skipped"} - {""}


def test_the_list_counts_every_skipped_time_of_a_long_series(hourly: Schedule, tenant: Tenant) -> None:
    days = 50
    fire(hourly, NOON + days * 24 * HOUR)

    (row,) = schedules.listing(tenant.pk)["rows"]

    assert row["skipped"] == days * 24 - 1


def test_a_dry_run_starts_nothing(engine: Engine, tenant: Tenant, ann: Person) -> None:
    tickers(tenant, 7)
    schedule = make_schedule(tenant, "prices", params={"ticker": "db:ticker:all:id?enabled=true"})
    page = ann.get(f"{SCHEDULES}{schedule.pk}/")

    preview = forms_of(page)["actions"].send(ann.browser, ("action", "dry_run"))

    assert preview.status_code == 200
    assert preview.context["forecast"]["errors"] == [], preview.context["forecast"]
    assert "7 jobs each time" in visible_text(preview)
    assert "T00000" in visible_text(preview)
    assert executions(tenant) == []


def test_an_operator_runs_a_schedule_now(hourly: Schedule, address: str, tenant: Tenant, ann: Person) -> None:
    answer = forms_of(ann.get(address))["actions"].send(ann.browser, ("action", "run"))

    assert "manual run" in visible_text(ann.get(answer["Location"]))
    (execution,) = executions(tenant)
    assert (execution.created_by, execution.nominal_at) == ("user:ann", None)


def test_a_form_sent_twice_runs_a_schedule_once(
    hourly: Schedule, address: str, tenant: Tenant, ann: Person, person: Callable[..., Person]
) -> None:
    form = forms_of(ann.get(address))["actions"]
    form.send(ann.browser, ("action", "run"))

    again = form.send(ann.browser, ("action", "run"))

    assert "This run was already started" in visible_text(ann.get(again["Location"]))
    assert len(executions(tenant)) == 1
    forms_of(ann.get(address))["actions"].send(ann.browser, ("action", "run"))
    bob = person("bob")
    send_form(bob, form, action="run")
    assert len(executions(tenant)) == 3, "another page, and another person"


def test_operators_pause_and_resume_a_schedule_as_with_the_api(
    hourly: Schedule, address: str, ann: Person, person: Callable[..., Person]
) -> None:
    vic = person("vic", role="viewer")
    form = forms_of(ann.get(address))["actions"]
    assert ("action", "pause") not in forms_of(vic.get(address))["actions"].buttons
    assert "needs the role operator" in refusal_notice(send_form(vic, form, action="pause"), 403)

    page = ann.get(form.send(ann.browser, ("action", "pause"))["Location"])

    assert "enabled paused" in visible_text(page)
    assert "these times do not fire until it is resumed" in visible_text(page)
    assert ann.browser.get(f"/api/v1/schedules/{hourly.pk}/").json()["paused"] is True
    for shown, is_listed in (("", True), ("paused", True), ("on", True), ("off", False)):
        text = visible_text(ann.get(f"{SCHEDULES}?state={shown}"))
        assert bool(re.search(r"refresh every hour \(UTC\) .*? paused", text)) is is_listed
    page = ann.get(forms_of(page)["actions"].send(ann.browser, ("action", "resume"))["Location"])
    assert "paused" not in visible_text(page)
    assert reload(hourly).enabled


def test_only_admins_enable_and_disable(
    hourly: Schedule, address: str, ann: Person, person: Callable[..., Person]
) -> None:
    boss = person("boss", role="admin")
    form = forms_of(boss.get(address))["actions"]
    assert ("action", "off") not in forms_of(ann.get(address))["actions"].buttons

    assert "needs the role admin" in refusal_notice(send_form(ann, form, action="off"), 403)
    assert reload(hourly).enabled

    page = boss.get(form.send(boss.browser, ("action", "off"))["Location"])
    assert not reload(hourly).enabled
    forms_of(page)["actions"].send(boss.browser, ("action", "on"))
    assert reload(hourly).enabled


def test_a_viewer_may_preview_but_not_run(
    hourly: Schedule, address: str, tenant: Tenant, ann: Person, person: Callable[..., Person]
) -> None:
    vic = person("vic", role="viewer")
    form = forms_of(vic.get(address))["actions"]
    assert [value for _, value in form.buttons] == ["dry_run"]

    assert "1 job each time" in visible_text(form.send(vic.browser, ("action", "dry_run")))
    assert "needs the role operator" in refusal_notice(send_form(vic, form, action="run"), 403)
    assert executions(tenant) == []


def test_a_preview_of_other_times_writes_nothing(
    hourly: Schedule, address: str, tenant: Tenant, ann: Person
) -> None:
    form = forms_of(ann.get(f"{SCHEDULES}try/?schedule={hourly.pk}"))["try"]
    assert (form.fields["when"], form.fields["minute"]) == (["hourly"], ["0"])

    preview = form.send(
        ann.browser, ("action", "look"), when="cron", cron="0 9 * * 1-5", timezone="Europe/Berlin"
    )

    text = visible_text(preview)
    assert "At 09:00, Monday through Friday (Europe/Berlin)" in text
    assert len(re.findall(r"(Mon|Tue|Wed|Thu|Fri) \d{4}-\d\d-\d\d 09:00 UTC\+0[12]:00", text)) == 5
    assert reload(hourly).cron == "0 * * * *"


def test_invalid_times_are_reported_at_their_field_and_kept(hourly: Schedule, ann: Person) -> None:
    form = forms_of(ann.get(f"{SCHEDULES}try/?schedule={hourly.pk}"))["try"]

    def answer_to(**filled: str) -> HttpResponse:
        answer = form.send(ann.browser, ("action", "look"), when="cron", cron="61 * * * *", **filled)
        assert answer.status_code == 400
        return answer

    assert answer_to(params="{broken").context["form"].errors.keys() == {"params"}
    assert answer_to(timezone="Mars/Olympus").context["form"].errors.keys() == {"timezone"}
    answer = answer_to(name="")
    assert answer.context["form"].errors.keys() == {"cron"}
    assert 'value="61 * * * *"' in answer.content.decode()


def test_schedules_of_another_tenant_are_not_shown(
    hourly: Schedule, address: str, other_tenant: Tenant, person: Callable[..., Person]
) -> None:
    otto = person("otto", other_tenant)

    assert otto.browser.get(address).status_code == 404
    assert "There are no schedules." in visible_text(otto.get(SCHEDULES))
    assert (
        otto.browser.get(f"{SCHEDULES}try/?schedule={hourly.pk}&tenant={other_tenant.slug}").status_code
        == 404
    )


def test_the_pages_need_few_queries_for_any_number_of_rows(
    hourly: Schedule, address: str, tenant: Tenant, ann: Person, queries_of: Callable[..., list[str]]
) -> None:
    for number in range(20):
        make_schedule(tenant, f"schedule {number}")
    fire(hourly, NOON + 20 * HOUR)

    for each in (SCHEDULES, address):
        queries = queries_of(ann, each)
        assert len(queries) <= 12, queries


def test_stored_times_that_became_invalid_are_reported(
    hourly: Schedule, address: str, tenant: Tenant, ann: Person
) -> None:
    with tenant_scope(tenant.pk):
        Schedule.objects.filter(pk=hourly.pk).update(timezone="Mars/Olympus")

    assert "The stored times are no longer valid." in visible_text(ann.get(SCHEDULES))
    assert "There are no next times." in visible_text(ann.get(address))


def test_the_calendar_counts_only_future_times(tenant: Tenant) -> None:
    make_schedule(tenant, "hourly")

    weeks = schedules.listing(tenant.pk, now=datetime(2026, 3, 4, 21, 30, tzinfo=UTC))["weeks"]

    assert [mark.times for day in weeks[0][:2] for mark in day.marks] == []
    assert weeks[0][2].marks[0].times == 2
    assert weeks[0][3].marks[0].times == int(timedelta(days=1) / HOUR)


# Schedules created and changed by admins


def schedule_named(tenant: Tenant, name: str) -> Schedule:
    with tenant_scope(tenant.pk):
        schedule: Schedule = Schedule.objects.select_related("pipeline").get(name=name)
    return schedule


@pytest.mark.parametrize(
    ("filled", "cron", "interval_ms"),
    [
        ({"when": "hourly", "minute": "15"}, "15 * * * *", None),
        ({"when": "daily", "at": "07:05"}, "5 7 * * *", None),
        ({"when": "workdays", "at": "18:00"}, "0 18 * * 1-5", None),
        ({"when": "weekly", "weekday": "0", "at": "09:30"}, "30 9 * * 0", None),
        ({"when": "monthly", "day": "31", "at": "00:00"}, "0 0 31 * *", None),
        ({"when": "cron", "cron": "*/10 8-18 * * 1,3"}, "*/10 8-18 * * 1,3", None),
        ({"when": "every", "minutes": "90"}, "", 5_400_000),
        ({"when": "every", "minutes": "1.5"}, "", 90_000),
    ],
    ids=["hourly", "daily", "workdays", "weekly", "monthly", "cron", "minutes", "a part of a minute"],
)
def test_an_admin_creates_a_schedule_and_its_form_shows_the_same_fields(
    filled: dict[str, str], cron: str, interval_ms: int | None, engine: Engine, tenant: Tenant, boss: Person
) -> None:
    form = forms_of(boss.get(f"{SCHEDULES}new/"))["edit"]

    answer = form.send(
        boss.browser, ("action", "save"), name="Mine", target="agent:qa", params='{"a": 1}', **filled
    )

    assert answer.status_code == 302, visible_text(answer)
    created = schedule_named(tenant, "Mine")
    assert (created.cron, created.interval_ms, created.agent_role, created.params) == (
        cron,
        interval_ms,
        "qa",
        {"a": 1},
    )
    assert (created.created_by, created.enabled) == ("user:boss", True)
    change = forms_of(boss.get(f"{SCHEDULES}{created.pk}/change/"))["edit"]
    assert {name: change.fields[name] for name in filled} == {name: [value] for name, value in filled.items()}
    change.send(boss.browser, ("action", "save"), description="Changed.")
    after = schedule_named(tenant, "Mine")
    assert (after.cron, after.interval_ms, after.description) == (cron, interval_ms, "Changed.")


def test_a_new_schedule_starts_with_the_tenants_time_zone_and_the_pipeline(
    engine: Engine, tenant: Tenant, boss: Person
) -> None:
    make_pipeline(tenant, "flow")
    with system_scope():
        Tenant.objects.filter(pk=tenant.pk).update(timezone="Asia/Tokyo")

    form = forms_of(boss.get(f"{SCHEDULES}new/?pipeline=flow"))["edit"]

    assert (form.fields["timezone"], form.fields["target"]) == (["Asia/Tokyo"], ["pipeline:flow"])
    assert forms_of(boss.get(f"{SCHEDULES}try/"))["try"].fields["timezone"] == ["Asia/Tokyo"]
    form.send(boss.browser, ("action", "save"), name="Once", when="once", moment="2031-05-01T09:30")
    created = schedule_named(tenant, "Once")
    assert (created.repeat, created.start_at) == ("once", datetime(2031, 5, 1, 0, 30, tzinfo=UTC))
    assert created.pipeline is not None
    assert created.pipeline.key == "flow"


def test_a_sunday_written_as_7_stays_a_cron_expression(tenant: Tenant, boss: Person) -> None:
    sunday = make_schedule(tenant, "Sunday", cron="0 9 * * 7")

    form = forms_of(boss.get(f"{SCHEDULES}{sunday.pk}/change/"))["edit"]

    assert (form.fields["when"], form.fields["cron"]) == (["cron"], ["0 9 * * 7"])


def test_a_schedule_can_change_between_once_and_repeating(tenant: Tenant, boss: Person) -> None:
    once = make_schedule(tenant, "Once", repeat="once", start_at=datetime(2031, 5, 1, tzinfo=UTC))
    address = f"{SCHEDULES}{once.pk}/change/"

    forms_of(boss.get(address))["edit"].send(boss.browser, ("action", "save"), when="daily", at="08:00")
    repeats = schedule_named(tenant, "Once")
    forms_of(boss.get(address))["edit"].send(
        boss.browser, ("action", "save"), when="once", moment="2032-01-01T00:00"
    )

    assert (repeats.repeat, repeats.cron, repeats.start_at) == ("repeating", "0 8 * * *", None)
    after = schedule_named(tenant, "Once")
    assert (after.repeat, after.cron, after.start_at) == ("once", "", datetime(2032, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    "times",
    [
        {"repeat": "once", "start_at": datetime(2031, 11, 2, 6, 30, tzinfo=UTC)},  # 01:30, the second time
        {"repeat": "once", "start_at": datetime(2031, 5, 1, 9, 30, 0, 250_000, tzinfo=UTC)},
        {"interval_ms": 61_234_567},
    ],
    ids=["a repeated hour", "a part of a second", "a part of a minute"],
)
def test_times_that_the_form_cannot_show_exactly_stay_when_other_fields_change(
    times: dict[str, Any], tenant: Tenant, boss: Person
) -> None:
    before = make_schedule(tenant, timezone="America/New_York", **times)
    form = forms_of(boss.get(f"{SCHEDULES}{before.pk}/change/"))["edit"]

    form.send(boss.browser, ("action", "save"), description="Changed.")

    after = reload(before)
    assert after.description == "Changed."
    assert (after.start_at, after.interval_ms) == (before.start_at, before.interval_ms)


def test_a_schedule_with_the_longest_name_and_description_of_the_api_can_be_changed(
    tenant: Tenant, boss: Person
) -> None:
    before = make_schedule(tenant, "N" * editing.LONGEST_NAME, description="D" * editing.LONGEST_DESCRIPTION)
    form = forms_of(boss.get(f"{SCHEDULES}{before.pk}/change/"))["edit"]

    form.send(boss.browser, ("action", "save"), when="daily", at="08:00")

    assert reload(before).cron == "0 8 * * *"


def test_faults_of_a_schedule_are_shown_at_their_fields(tenant: Tenant, boss: Person) -> None:
    def faults(**filled: str) -> set[str]:
        form = forms_of(boss.get(f"{SCHEDULES}new/"))["edit"]
        answer = form.send(
            boss.browser, ("action", "save"), **{"name": "Mine", "target": "agent:qa", **filled}
        )
        assert answer.status_code == 400, visible_text(answer)
        return set(answer.context["form"].errors)

    assert faults(when="cron", cron="61 * * * *") == {"cron"}
    assert faults(when="cron", cron="") == {"cron"}
    assert faults(when="monthly", day="32") == {"day"}
    assert faults(when="once", moment="soon") == {"moment"}
    assert faults(when="daily", at="", timezone="Mars/Olympus") == {"at", "timezone"}
    assert faults(when="daily", name="", params="{") == {"name", "params"}
    assert faults(when="daily", target="agent:nobody") == {"target"}
    with tenant_scope(tenant.pk):
        assert not Schedule.objects.exists()


def test_fields_of_another_choice_are_ignored(tenant: Tenant, boss: Person) -> None:
    form = forms_of(boss.get(f"{SCHEDULES}new/"))["edit"]

    form.send(
        boss.browser,
        ("action", "save"),
        name="Mine",
        target="agent:qa",
        when="daily",
        minute="99",
        minutes="x",
        day="0",
    )

    assert schedule_named(tenant, "Mine").cron == "0 9 * * *"


def test_a_taken_name_is_refused_at_its_field(tenant: Tenant, boss: Person) -> None:
    make_schedule(tenant, "Mine")

    form = forms_of(boss.get(f"{SCHEDULES}new/"))["edit"]
    answer = form.send(boss.browser, ("action", "save"), name="Mine", target="agent:qa")

    assert answer.status_code == 409
    assert "Mine" in str(answer.context["form"].errors)


def test_the_form_previews_words_and_times_without_writing(tenant: Tenant, boss: Person) -> None:
    form = forms_of(boss.get(f"{SCHEDULES}new/"))["edit"]
    typed = {
        **form.fields,
        "target": "agent:qa",
        "when": "workdays",
        "at": "09:00",
        "timezone": "Europe/Berlin",
    }

    preview = visible_text(send_form(boss, Form(f"{SCHEDULES}words/", "post", typed)))

    assert "At 09:00, Monday through Friday (Europe/Berlin)" in preview
    assert preview.count(", 09:00") == 5
    unclear = visible_text(
        send_form(boss, Form(f"{SCHEDULES}words/", "post", {**typed, "when": "cron", "cron": "61 * * * *"}))
    )
    assert "Incomplete: Cron: " in unclear
    response = form.send(boss.browser, ("action", "look"), target="agent:qa", when="hourly")
    assert "Every hour" in visible_text(response), "for those without scripts"
    with tenant_scope(tenant.pk):
        assert not Schedule.objects.exists()


def test_the_second_of_two_concurrent_changes_is_refused(
    hourly: Schedule, tenant: Tenant, boss: Person, person: Callable[..., Person]
) -> None:
    other = person("other", role="admin")
    address = f"{SCHEDULES}{hourly.pk}/change/"
    form = forms_of(boss.get(address))["edit"]
    forms_of(other.get(address))["edit"].send(other.browser, ("action", "save"), description="Theirs.")

    answer = form.send(boss.browser, ("action", "save"), description="Ours.")

    assert answer.status_code == 412
    assert schedule_named(tenant, hourly.name).description == "Theirs."


def test_only_admins_create_and_change_schedules(
    hourly: Schedule, tenant: Tenant, ann: Person, boss: Person
) -> None:
    form = forms_of(boss.get(f"{SCHEDULES}new/"))["edit"]

    assert "New schedule" not in visible_text(ann.get(SCHEDULES))
    assert send_form(ann, form, action="save", name="Mine", target="agent:qa").status_code == 404
    assert ann.browser.get(f"{SCHEDULES}{hourly.pk}/change/").status_code == 404
    with tenant_scope(tenant.pk):
        assert Schedule.objects.count() == 1
