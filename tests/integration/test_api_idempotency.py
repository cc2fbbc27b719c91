"""Idempotency-Key: a POST that is repeated takes effect once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import orjson
import pytest
from django.db import connections
from django.utils import timezone

from tenants import retention
from tenants.api import idempotency
from tenants.context import system_scope, tenant_scope
from tenants.models import IdempotentRequest
from tests.answers import problem
from tests.cases import in_one_test
from tests.integration import notes_api
from tests.integration.notes_api import names_of

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.urls("tests.integration.notes_api")]

NOTES = "/api/notes/"


def post(client, body: object = None, key: str = "key-1", path: str = NOTES):
    return client.post(path, {"name": "work"} if body is None else body, headers={"Idempotency-Key": key})


def test_a_repeated_request_gets_the_first_answer_and_has_no_effect(api, tenant):
    client = api()

    first, again = post(client), post(client)

    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert "Idempotency-Replayed" not in first
    assert again["Idempotency-Replayed"] == "true"
    assert names_of(tenant) == ["work"]


def test_a_repeated_request_gets_the_stored_headers_and_headers_of_its_own(api):
    client = api()

    first, again = post(client), post(client)

    for header in ("Content-Type", "ETag", "Location", "Allow", "RateLimit-Policy"):
        assert again[header] == first[header]
    assert again["X-Request-Id"] != first["X-Request-Id"]


def test_without_a_key_every_request_counts(api, tenant):
    client = api()

    client.post(NOTES, {"name": "work"})
    client.post(NOTES, {"name": "work"})

    assert names_of(tenant) == ["work", "work"]


def test_member_order_and_white_space_do_not_make_another_request(api, tenant):
    client = api()

    for body in (b'{"name":"work","priority":3}', b'{ "priority": 3, "name": "work" }'):
        answer = client.generic(
            "POST", NOTES, body, content_type="application/json", headers={"Idempotency-Key": "key-1"}
        )
        assert answer.status_code == 201

    assert names_of(tenant) == ["work"]


@pytest.mark.parametrize("path", [NOTES, f"{NOTES}?format=json"])
def test_another_request_under_the_same_key_is_422(api, tenant, path):
    client = api()
    post(client)

    problem(post(client, {"name": "other"}, path=path), 422, "idempotency_key_reused")

    assert names_of(tenant) == ["work"]


def test_a_key_belongs_to_its_tenant_its_caller_and_its_path(api, tenant, other_tenant):
    ann, bob, elsewhere = api(), api(), api(tenant=other_tenant)

    answers = [post(client) for client in (ann, bob, elsewhere)]
    answers.append(post(ann, {}, path="/api/batch/"))

    assert [answer.status_code for answer in answers] == [201, 201, 201, 200]
    assert not any("Idempotency-Replayed" in answer for answer in answers)


def test_a_quoted_key_is_the_key_between_the_quotes(api, tenant):
    client = api()

    post(client, key='"abc"')
    again = post(client, key="abc")

    assert again["Idempotency-Replayed"] == "true"


@in_one_test("key", ["", " ", "a" * 256, "two words", 'a"b', '"', "é", "a\tb"])
def test_a_malformed_key_is_400(api, tenant, key):
    problem(post(api(), key=key), 400, "invalid_idempotency_key")

    assert names_of(tenant) == []


def test_an_error_is_not_stored_so_that_the_request_may_succeed_later(api, tenant, monkeypatch):
    client = api()
    client.raise_request_exception = False
    monkeypatch.setattr(
        notes_api.NoteViewSet, "fail_with", [RuntimeError("broken"), notes_api.Occupied("busy")]
    )

    statuses = [post(client).status_code for _ in range(4)]

    assert statuses == [500, 409, 201, 201]
    assert names_of(tenant) == ["work"]


def test_a_refused_body_may_be_corrected_under_the_same_key(api, tenant):
    client = api()

    assert post(client, {"name": ""}).status_code == 400
    assert post(client, {"name": "mended"}).status_code == 201


def test_a_killed_request_leaves_neither_effect_nor_answer(api, tenant, monkeypatch):
    client = api()
    client.raise_request_exception = False
    monkeypatch.setattr(idempotency._Key, "store", lambda *_: (_ for _ in ()).throw(RuntimeError("killed")))

    assert post(client).status_code == 500

    assert names_of(tenant) == []
    with tenant_scope(tenant.pk):
        assert IdempotentRequest.objects.count() == 0


@pytest.fixture
def paused_handlers(monkeypatch):
    """Stop handlers after their write until the event is set."""
    inside, leave = threading.Event(), threading.Event()
    monkeypatch.setattr(notes_api.NoteViewSet, "inside", inside)
    monkeypatch.setattr(notes_api.NoteViewSet, "leave", leave)
    yield inside, leave
    leave.set()


def test_a_repeated_request_is_409_during_the_first_and_later_gets_its_answer(api, tenant, paused_handlers):
    inside, leave = paused_handlers
    client = api()

    def first_request():
        try:
            return post(client)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(max_workers=1) as pool:
        first = pool.submit(first_request)
        assert inside.wait(60)
        meanwhile = post(client)
        leave.set()
        answer = first.result(60)
    afterwards = post(client)

    problem(meanwhile, 409, "idempotency_in_progress")
    assert meanwhile["Retry-After"] == "1"
    assert answer.status_code == 201
    assert afterwards.content == answer.content
    assert names_of(tenant) == ["work"]


def test_twenty_equal_requests_at_once_have_one_effect(api, tenant):
    client = api()
    barrier = threading.Barrier(10)

    def ask(_: int) -> list[int]:
        barrier.wait()
        statuses = [post(client).status_code for _ in range(2)]
        connections.close_all()
        return statuses

    with ThreadPoolExecutor(max_workers=10) as pool:
        statuses = [status for found in pool.map(ask, range(10)) for status in found]

    assert set(statuses) <= {201, 409}
    assert 201 in statuses
    assert names_of(tenant) == ["work"]


def test_a_secret_is_returned_once_and_not_stored(api, tenant):
    client = api()

    first = post(client, {}, path=f"{NOTES}secret/")
    again = post(client, {}, path=f"{NOTES}secret/")

    assert first.json()["secret"] == "s3cret"
    assert again.json() == {"name": "key", "secret": None}
    with tenant_scope(tenant.pk):
        stored = IdempotentRequest.objects.get()
    assert orjson.loads(bytes(stored.body)) == {"name": "key", "secret": None}


def test_keys_and_requests_are_stored_as_digests_only(api, tenant):
    post(api(), {"name": "confidential"}, key="customer-4711")

    with connections["system"].cursor() as cursor:
        cursor.execute("SELECT (to_jsonb(r) - 'body')::text FROM tenants_idempotentrequest r")
        dump = cursor.fetchone()[0]
    assert "customer" not in dump
    assert "confidential" not in dump


def test_stored_answers_older_than_a_day_are_purged_for_all_tenants(api, tenant, other_tenant):
    for owner in (tenant, other_tenant):
        client = api(tenant=owner)
        post(client, key="old")
        with tenant_scope(owner.pk):
            IdempotentRequest.objects.update(created_at=timezone.now() - timedelta(hours=25))
        post(client, key="new")

    retention.arrange(due=True)
    assert retention.purge_in_turns() == 2

    with system_scope():
        assert IdempotentRequest.objects.count() == 2
    retention.arrange(due=True)
    assert retention.purge_in_turns() == 0
