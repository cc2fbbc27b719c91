"""The pages of schedules: what comes, what became of the times that passed, and looking ahead without writing anything."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from console.schedules import queries
from pipelines.models import Schedule
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.browsing import words
from tests.console_user import Person, refused, sent_by
from tests.engine import Engine
from tests.forms import forms_of
from tests.scheduling import HOUR, NOON, again, executions, fire, make_schedule, tickers

SCHEDULES = "/schedules/"


@pytest.fixture
def hourly(engine: Engine, tenant: Tenant) -> Schedule:
    """An hourly schedule of `qa`."""
    return make_schedule(tenant, "refresh")


@pytest.fixture
def address(hourly: Schedule) -> str:
    return f"{SCHEDULES}{hourly.pk}/"


def test_the_list_says_when_in_words_and_what_comes_next(engine: Engine, tenant: Tenant, ann: Person) -> None:
    make_schedule(tenant, "report", cron="30 3 * * 1", timezone="America/New_York")
    make_schedule(tenant, "sleeping", enabled=False)

    text = words(ann.get(SCHEDULES))

    assert "at 03:30, only on Monday (America/New_York)" in text
    assert "sleeping every hour (UTC)" in text
    assert "switched off" in text
    assert "sleeping" not in words(ann.get(f"{SCHEDULES}?shown=on"))
    assert "report" not in words(ann.get(f"{SCHEDULES}?search=sleep"))


def test_the_calendar_holds_the_days_of_four_weeks_with_first_times_and_counts(tenant: Tenant) -> None:
    make_schedule(tenant, "noon", cron="0 12 * * 2")
    make_schedule(tenant, "often", cron="*/10 * * * *")
    make_schedule(tenant, "off", enabled=False)

    weeks = queries.listing(tenant.pk, now=NOON).weeks  # a Monday

    assert [week.begins.isoformat() for week in weeks] == [
        "2026-03-02",
        "2026-03-09",
        "2026-03-16",
        "2026-03-23",
    ]
    monday, tuesday = weeks[0].days[0], weeks[0].days[1]
    assert monday.is_today
    assert [(mark.schedule.name, mark.first) for mark in monday.marks] == [("often", "12:10")]
    assert [(mark.schedule.name, mark.first, mark.often) for mark in tuesday.marks] == [
        ("often", "00:00", "\u00d724+"),
        ("noon", "12:00", ""),
    ]


def test_times_that_passed_say_what_became_of_them_and_why(
    hourly: Schedule, address: str, ann: Person
) -> None:
    fire(hourly, NOON + 3 * HOUR)

    text = words(ann.get(address))

    assert "2026-03-02 15:00:00 UTC fired" in text
    assert "2026-03-02 13:00:00 UTC" in text
    assert "skipped" in text
    firings = ann.get(address).context["one"].firings
    assert {firing.reason for firing in firings if firing.state == "skipped"} - {""}


def test_a_dry_run_expands_without_beginning_anything(engine: Engine, tenant: Tenant, ann: Person) -> None:
    tickers(tenant, 7)
    schedule = make_schedule(tenant, "prices", params={"ticker": "db:ticker:all:id?enabled=true"})
    page = ann.get(f"{SCHEDULES}{schedule.pk}/")

    foretold = forms_of(page)["deeds"].send(ann.browser, ("deed", "dry_run"))

    assert foretold.status_code == 200
    assert foretold.context["forecast"]["errors"] == [], foretold.context["forecast"]
    assert "7 jobs each time" in words(foretold)
    assert "T00000" in words(foretold)
    assert executions(tenant) == []


def test_an_operator_runs_it_now(hourly: Schedule, address: str, tenant: Tenant, ann: Person) -> None:
    answer = forms_of(ann.get(address))["deeds"].send(ann.browser, ("deed", "run"))

    assert "by hand" in words(ann.get(answer["Location"]))
    (execution,) = executions(tenant)
    assert (execution.created_by, execution.nominal_at) == ("user:ann", None)


def test_a_button_that_is_pressed_twice_runs_it_once(
    hourly: Schedule, address: str, tenant: Tenant, ann: Person, person: Callable[..., Person]
) -> None:
    form = forms_of(ann.get(address))["deeds"]
    form.send(ann.browser, ("deed", "run"))

    again = form.send(ann.browser, ("deed", "run"))

    assert "It had begun already" in words(ann.get(again["Location"]))
    assert len(executions(tenant)) == 1
    forms_of(ann.get(address))["deeds"].send(ann.browser, ("deed", "run"))
    bob = person("bob")
    sent_by(bob, form, deed="run")
    assert len(executions(tenant)) == 3, "another page, and another person"


def test_only_admins_pause_and_resume(
    hourly: Schedule, address: str, ann: Person, person: Callable[..., Person]
) -> None:
    boss = person("boss", role="admin")
    form = forms_of(boss.get(address))["deeds"]
    assert ("deed", "off") not in forms_of(ann.get(address))["deeds"].buttons

    assert "needs the role admin" in refused(sent_by(ann, form, deed="off"), 403)
    assert again(hourly).enabled

    page = boss.get(form.send(boss.browser, ("deed", "off"))["Location"])
    assert not again(hourly).enabled
    forms_of(page)["deeds"].send(boss.browser, ("deed", "on"))
    assert again(hourly).enabled


def test_a_viewer_may_look_ahead_but_not_run(
    hourly: Schedule, address: str, tenant: Tenant, ann: Person, person: Callable[..., Person]
) -> None:
    vic = person("vic", role="viewer")
    form = forms_of(vic.get(address))["deeds"]
    assert [value for _, value in form.buttons] == ["dry_run"]

    assert "1 job each time" in words(form.send(vic.browser, ("deed", "dry_run")))
    assert "needs the role operator" in refused(sent_by(vic, form, deed="run"), 403)
    assert executions(tenant) == []


def test_other_times_are_tried_out_and_nothing_is_written(
    hourly: Schedule, address: str, tenant: Tenant, ann: Person
) -> None:
    form = forms_of(ann.get(f"{SCHEDULES}try/?schedule={hourly.pk}"))["try"]
    assert form.fields["cron"] == ["0 * * * *"]

    foretold = form.send(ann.browser, cron="0 9 * * 1-5", timezone="Europe/Berlin")

    text = words(foretold)
    assert "At 09:00, Monday through Friday (Europe/Berlin)" in text
    assert text.count("T09:00:00+0") == 5
    assert again(hourly).cron == "0 * * * *"


def test_what_is_wrong_with_times_stands_at_its_field_and_what_was_typed_is_kept(
    hourly: Schedule, ann: Person
) -> None:
    form = forms_of(ann.get(f"{SCHEDULES}try/?schedule={hourly.pk}"))["try"]

    answer = form.send(ann.browser, cron="61 * * * *", params="{broken")
    assert answer.status_code == 400
    assert answer.context["form"].errors.keys() == {"params"}

    answer = form.send(ann.browser, cron="61 * * * *", timezone="Mars/Olympus")
    assert answer.status_code == 400
    assert answer.context["form"].errors.keys() == {"cron", "timezone"}
    assert 'value="61 * * * *"' in answer.content.decode()


def test_others_schedules_are_not_there(
    hourly: Schedule, address: str, other_tenant: Tenant, person: Callable[..., Person]
) -> None:
    otto = person("otto", other_tenant)

    assert otto.browser.get(address).status_code == 404
    assert "There are no schedules." in words(otto.get(SCHEDULES))
    assert forms_of(otto.get(f"{SCHEDULES}try/?schedule={hourly.pk}"))["try"].fields["cron"] == [""]


def test_the_pages_cost_the_same_however_many_there_are(
    hourly: Schedule, address: str, tenant: Tenant, ann: Person, asked_queries: Callable[..., list[str]]
) -> None:
    for number in range(20):
        make_schedule(tenant, f"schedule {number}")
    fire(hourly, NOON + 20 * HOUR)

    for each in (SCHEDULES, address):
        asked = asked_queries(ann, each)
        assert len(asked) <= 12, asked


def test_times_that_cannot_be_read_are_said_to_be_so(
    hourly: Schedule, address: str, tenant: Tenant, ann: Person
) -> None:
    with tenant_scope(tenant.pk):
        Schedule.objects.filter(pk=hourly.pk).update(timezone="Mars/Olympus")

    assert "Its times cannot be read any more" in words(ann.get(SCHEDULES))
    assert "It never fires again." in words(ann.get(address))


def test_a_day_counts_from_now_on(tenant: Tenant) -> None:
    make_schedule(tenant, "hourly")

    weeks = queries.listing(tenant.pk, now=datetime(2026, 3, 4, 21, 30, tzinfo=UTC)).weeks

    assert [mark.times for day in weeks[0].days[:2] for mark in day.marks] == []
    assert weeks[0].days[2].marks[0].times == 2
    assert weeks[0].days[3].marks[0].times == int(timedelta(days=1) / HOUR)
