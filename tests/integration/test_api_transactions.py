"""Each request is one transaction of one tenant, also when it fails or is retried."""

from __future__ import annotations

import pytest
from django.db import connections

from tenants.context import current_alias
from tenants.current_tenant import current_tenant
from tests.answers import problem
from tests.integration import notes_api
from tests.integration.notes_api import names_of

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.urls("tests.integration.notes_api")]

NOTES = "/api/notes/"


def test_a_handler_that_raises_changes_nothing(api, tenant, monkeypatch):
    client = api()
    client.raise_request_exception = False
    monkeypatch.setattr(notes_api.NoteViewSet, "fail_with", [RuntimeError("after writing")])

    problem(client.post(NOTES, {"name": "half"}), 500, "internal_error")

    assert names_of(tenant) == []
    assert (current_tenant(), current_alias()) == (None, "default")
    with connections["default"].cursor() as cursor:
        cursor.execute(
            "SELECT count(*), nullif(current_setting('app.tenant_id', true), '') FROM activities_activity"
        )
        assert cursor.fetchone() == (0, None)


def test_a_handler_that_answers_with_an_error_changes_nothing(api, tenant):
    assert api().post(f"{NOTES}half/").status_code == 409

    assert names_of(tenant) == []


def test_functions_that_wait_for_the_commit_run_before_the_answer_is_sent(api, monkeypatch):
    monkeypatch.setattr(notes_api.HookView, "done", calls := [])

    api().post("/api/hook/", {"fail": True})
    assert calls == []
    api().post("/api/hook/", {})
    assert calls == ["after commit"]


def test_a_request_is_retried_after_a_deadlock_and_takes_effect_once(api, tenant, monkeypatch):
    monkeypatch.setattr(notes_api.NoteViewSet, "fail_with", [notes_api.deadlock(), notes_api.deadlock()])

    assert api().post(NOTES, {"name": "late"}).status_code == 201

    assert names_of(tenant) == ["late"]


def test_a_request_is_retried_once_after_a_lock_timeout(api, tenant, monkeypatch):
    monkeypatch.setattr(notes_api.NoteViewSet, "fail_with", [notes_api.lock_timeout()])
    assert api().post(NOTES, {"name": "late"}).status_code == 201

    monkeypatch.setattr(notes_api.NoteViewSet, "fail_with", [notes_api.lock_timeout() for _ in range(2)])
    problem(api().post(NOTES, {"name": "never"}), 503, "unavailable")

    assert names_of(tenant) == ["late"]


def test_a_repeated_deadlock_ends_the_retries(api, tenant, monkeypatch):
    monkeypatch.setattr(notes_api.NoteViewSet, "fail_with", [notes_api.deadlock() for _ in range(3)])

    problem(api().post(NOTES, {"name": "never"}), 503, "unavailable")

    assert names_of(tenant) == []
