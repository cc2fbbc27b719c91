"""Alerts over the API: lists, filters, details and acknowledgements."""

from __future__ import annotations

from typing import Any

from activities.notifications.delivery import deliver_waiting
from tenants.identifiers import uuid7
from tenants.models import Tenant
from tests.answers import problem
from tests.cases import in_one_test
from tests.engine import simultaneously
from tests.integration.alerts_api.raising import ALERTS, make_alert, make_channel


def titles(client: Any, query: str = "") -> list[str]:
    return [alert["title"] for alert in client.get(f"{ALERTS}{query}").json()["results"]]


def test_an_alert_is_returned_with_the_state_of_its_deliveries(
    api: Any, tenant: Tenant, settings: Any
) -> None:
    settings.ALERT_EMAIL = "platform@example.com"
    channel = make_channel(api())
    activity = uuid7()
    alert_id = make_alert(tenant, body="Three times.", activity_id=activity, facts={"attempts": 3})
    deliver_waiting("email")

    answer = api("viewer").get(f"{ALERTS}{alert_id}/")

    alert = answer.json()
    (delivery,) = alert.pop("deliveries")
    assert alert | {"created_at": ""} == {
        "id": str(alert_id), "kind": "dead_letter", "severity": "warning", "title": "It failed", "body": "Three times.",
        "activity": str(activity), "facts": {"attempts": 3}, "created_at": "", "acknowledged_at": None, "acknowledged_by": None,
    }  # fmt: skip
    assert (delivery["channel"], delivery["name"], delivery["kind"]) == (channel["id"], "Ops", "email")
    assert (delivery["state"], delivery["attempts"], delivery["next_attempt_at"]) == ("failed", 1, None)
    assert "EMAIL_URL" in delivery["last_error"]
    assert answer["ETag"]


def test_alerts_are_listed_newest_first_and_can_be_filtered(api: Any, tenant: Tenant) -> None:
    activity = uuid7()
    make_alert(tenant, title="first", activity_id=activity)
    make_alert(tenant, "plan_invalid", "second", severity="critical")
    make_alert(tenant, title="third")
    client = api("reviewer")
    client.post(f"{ALERTS}{make_alert(tenant, title='seen')}/acknowledge/")

    assert titles(client) == ["seen", "third", "second", "first"]
    assert titles(client, "?kind=plan_invalid") == ["second"]
    assert titles(client, "?severity=critical") == ["second"]
    assert titles(client, f"?activity={activity}") == ["first"]
    assert titles(client, "?acknowledged=true") == ["seen"]
    assert titles(client, "?acknowledged=false&search=ir") == ["third", "first"]
    assert titles(client, "?ordering=created_at&limit=2") == ["first", "second"]


@in_one_test("query", ["kind=dead_leter", "severity=bad", "activity=1", "acknowledged=perhaps", "titel=x"])
def test_invalid_filters_of_alerts_are_refused(api: Any, query: str) -> None:
    problem(api("viewer").get(f"{ALERTS}?{query}"), 400, "validation_failed")


def test_an_alert_names_who_acknowledged_it_first(api: Any, tenant: Tenant) -> None:
    place = f"{ALERTS}{make_alert(tenant)}/"
    first, second = api("reviewer", name="first"), api("operator", name="second")

    one, two = first.post(f"{place}acknowledge/"), second.post(f"{place}acknowledge/")

    assert (one.status_code, two.status_code) == (200, 200)
    assert one.json()["acknowledged_by"] == two.json()["acknowledged_by"] == "token:first"
    assert one.json()["acknowledged_at"] == two.json()["acknowledged_at"] is not None


def test_of_ten_concurrent_acknowledgements_one_counts(api: Any, tenant: Tenant) -> None:
    place = f"{ALERTS}{make_alert(tenant)}/acknowledge/"
    clients = [api("reviewer", name=f"person {number}") for number in range(10)]

    answers = simultaneously(*[lambda client=client: client.post(place) for client in clients])

    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["acknowledged_by"] for answer in answers}) == 1


def test_acknowledging_needs_a_reviewer_and_takes_no_fields(api: Any, tenant: Tenant) -> None:
    place = f"{ALERTS}{make_alert(tenant)}/"

    problem(api("viewer").post(f"{place}acknowledge/"), 403, "forbidden")
    problem(api("admin").delete(place), 405, "method_not_allowed")
    problem(
        api("reviewer").post(f"{place}acknowledge/", {"note": "x"}, format="json"), 400, "validation_failed"
    )
