"""ETag and If-Match: a change needs the current version of the object."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connections

from activities.models import Activity
from tenants.context import tenant_scope
from tests.answers import problem, version_of
from tests.integration.notes_api import names_of

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.urls("tests.integration.notes_api")]

NOTES = "/api/notes/"


@pytest.fixture
def note(api) -> str:
    return f"{NOTES}{api().post(NOTES, {'name': 'work'}).json()['id']}/"


def test_created_read_or_changed_objects_come_with_their_version(api, note):
    client = api()

    created = client.post(NOTES, {"name": "second"})
    read = client.get(note)
    changed = client.patch(note, {"name": "better"})

    assert [version_of(response) for response in (created, read, changed)] == ["1", "1", "2"]


def test_an_object_that_has_changed_without_a_new_version_is_sent_again(api, tenant, note):
    client = api()
    tag = client.get(note)["ETag"]
    with tenant_scope(tenant.pk):
        Activity.objects.update(priority=3)

    again = client.get(note, headers={"If-None-Match": tag})

    assert (again.status_code, again.json()["priority"], version_of(again)) == (200, 3, "1")
    assert client.get(note, headers={"If-None-Match": again["ETag"]}).status_code == 304
    assert client.patch(note, {"name": "better"}, headers={"If-Match": tag}).status_code == 200


def test_lists_and_errors_have_no_version(api, note):
    assert "ETag" not in api().get(NOTES)
    assert "ETag" not in api().get(f"{NOTES}no-such/")


@pytest.mark.parametrize("condition", ['"1"', "*", '"7", "1"'])
def test_a_change_with_the_current_version_is_made(api, note, condition):
    changed = api().patch(note, {"name": "better"}, headers={"If-Match": condition})

    assert changed.status_code == 200
    assert version_of(changed) == "2"


@pytest.mark.parametrize("condition", ['"2"', '"0"', 'W/"1"', "1", "", '"1'])
@pytest.mark.parametrize("method", ["patch", "delete", "decide"])
def test_a_change_with_another_version_is_412_and_does_nothing(api, tenant, note, condition, method):
    client = api()
    change = {"patch": client.patch, "delete": client.delete, "decide": client.post}[method]
    path = f"{note}decide/" if method == "decide" else note

    refused = problem(
        change(path, {"name": "stolen"}, headers={"If-Match": condition}), 412, "precondition_failed"
    )

    assert "is at version 1" in refused["detail"]
    assert names_of(tenant) == ["work"]


def test_a_condition_on_a_missing_object_is_404_first(api, note):
    problem(api().patch(f"{NOTES}no-such/", {}, headers={"If-Match": "*"}), 404, "not_found")


def test_reading_is_never_conditional(api, note):
    assert api().get(note, headers={"If-Match": '"7"'}).status_code == 200


def test_one_of_two_changes_of_the_same_version_succeeds(api, tenant, note):
    client = api()
    barrier = threading.Barrier(2)

    def change(name: str) -> int:
        barrier.wait()
        status = client.patch(note, {"name": name}, headers={"If-Match": '"1"'}).status_code
        connections.close_all()
        return status

    with ThreadPoolExecutor(max_workers=2) as pool:
        statuses = sorted(pool.map(change, ["ann's", "bob's"]))

    assert statuses == [200, 412]
    assert client.get(note).json()["version"] == 2
