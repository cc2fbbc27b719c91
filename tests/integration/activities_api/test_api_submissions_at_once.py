"""Repeated and bulk submissions: dedup keys, lists, idempotency keys, full backlogs."""

from __future__ import annotations

import pytest

from tests.answers import problem
from tests.integration.activities_api.submitted import ACTIVITIES, body, count, faults

pytestmark = pytest.mark.usefixtures("engine")


def test_a_dedup_key_of_a_live_activity_returns_it_instead_of_creating_another(api, tenant):
    client = api()
    first = client.post(ACTIVITIES, body(dedup_key="daily")).json()

    again = client.post(ACTIVITIES, body(dedup_key="daily", name="another name"))

    assert again.status_code == 200
    assert again.json() == {**first, "deduplicated": True}
    assert count(tenant) == 1


def test_a_dedup_key_is_free_again_once_its_activity_has_ended(api, tenant):
    client = api()
    first = client.post(ACTIVITIES, body(dedup_key="daily")).json()
    client.post(f"{first['link']}cancel/")

    assert client.post(ACTIVITIES, body(dedup_key="daily")).status_code == 201


def test_a_dedup_key_counts_within_its_tenant(api, tenant, other_tenant):
    api(tenant=other_tenant).post(ACTIVITIES, body(dedup_key="daily"))

    assert api(tenant=tenant).post(ACTIVITIES, body(dedup_key="daily")).status_code == 201


def test_one_request_creates_many_activities_and_reports_on_each(api, tenant):
    client = api()
    client.post(ACTIVITIES, body(dedup_key="there"))

    response = client.post(
        ACTIVITIES,
        [body(name=f"n{n}") for n in range(3)]
        + [body(dedup_key="there"), body(dedup_key="x"), body(dedup_key="x")],
    )

    results = response.json()["results"]
    assert response.status_code == 201
    assert [(one["created"], one["deduplicated"]) for one in results] == [(True, False)] * 3 + [
        (False, True),
        (True, False),
        (False, True),
    ]
    assert results[4]["id"] == results[5]["id"]
    assert count(tenant) == 5
    assert client.get(results[0]["link"]).json()["name"] == "n0"


def test_a_request_creates_at_most_a_thousand_activities(api, tenant):
    client = api()

    assert client.post(ACTIVITIES, [{"name": "x", "agent_role": "seo"}] * 1000).status_code == 201
    assert count(tenant) == 1000
    assert "" in faults(client.post(ACTIVITIES, [{"name": "x", "agent_role": "seo"}] * 1001))


def test_one_error_in_a_list_refuses_the_whole_list(api, tenant):
    several = {"name": "", "priority": 99, "nmae": "x"}
    errors = faults(api().post(ACTIVITIES, [body(), {"agent_role": "seo"}, body(priority=99), 5, several]))

    of_several = {"[4].name": "must not be blank", "[4].nmae": "is not a member of this object"}
    assert set(errors) == {"[1].name", "[2].priority", "[3]", "[4].priority", "[4].agent_role", *of_several}
    assert errors.items() >= of_several.items()
    assert count(tenant) == 0


def test_an_empty_list_is_refused(api, tenant):
    assert "" in faults(api().post(ACTIVITIES, []))


def test_a_repetition_under_the_same_idempotency_key_creates_nothing_more(api, tenant):
    client = api()

    first = client.post(ACTIVITIES, body(), headers={"Idempotency-Key": "k1"})
    again = client.post(ACTIVITIES, body(), headers={"Idempotency-Key": "k1"})

    assert (first.status_code, again.status_code) == (201, 201)
    assert (first.json(), first["Location"], first["ETag"]) == (
        again.json(),
        again["Location"],
        again["ETag"],
    )
    assert count(tenant) == 1


def test_a_full_backlog_is_429_and_other_roles_still_accept_work(api, tenant, settings):
    settings.ORCHESTRATOR_MAX_BACKLOG = 2
    client = api()
    client.post(ACTIVITIES, [body(), body()])

    refused = client.post(ACTIVITIES, body())

    problem(refused, 429, "backlog_full")
    assert int(refused["Retry-After"]) > 0
    assert client.post(ACTIVITIES, body(agent_role="seo")).status_code == 201
    assert client.post(ACTIVITIES, {"name": "x", "human_role": "editor"}).status_code == 201
    assert count(tenant) == 4
