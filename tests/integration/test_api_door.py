"""The API's door: who is let in, what may be brought along, and how every refusal reads."""

from __future__ import annotations

import gzip
import logging
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from random import Random
from uuid import uuid4

import orjson
import pytest
from django.contrib.auth.models import User
from django.db import OperationalError, connections
from django.test import Client
from rest_framework.test import APIClient

from activities.models import Activity
from tenants.context import current_alias, current_tenant, tenant_scope
from tenants.models import Membership, Role
from tests.integration import notes_api

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.urls("tests.integration.notes_api")]

NOTES = "/api/notes/"
JSON = "application/json"


def problem(response, status: int, code: str) -> dict:
    """The answer as a problem, after checking what all problems have in common."""
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json"
    body = orjson.loads(response.content)
    assert {"type", "title", "status", "detail", "code", "request_id"} <= set(body)
    assert (body["status"], body["code"]) == (status, code)
    assert body["request_id"] == response["X-Request-Id"]
    return body


def names_of(tenant) -> list[str]:
    with tenant_scope(tenant.pk):
        return sorted(Activity.objects.values_list("name", flat=True))


# Who is let in


def test_without_a_credential_the_answer_is_401_and_says_what_is_wanted(tenant):
    response = APIClient().get(NOTES)

    problem(response, 401, "not_authenticated")
    assert response["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("header", ["Bearer orc_" + "a" * 43, "Bearer", "Bearer two words", "bearer x", "Bearer \xff"])
def test_a_wrong_bearer_token_is_401(tenant, header):
    response = APIClient().get(NOTES, HTTP_AUTHORIZATION=header)

    problem(response, 401, "invalid_token")
    assert response["WWW-Authenticate"] == "Bearer"


def test_another_scheme_counts_as_no_credential(tenant):
    problem(APIClient().get(NOTES, HTTP_AUTHORIZATION="Basic YTpi"), 401, "not_authenticated")


@pytest.mark.parametrize("query", ["token=abc", "access_token=abc", "API_KEY=abc", "q=orc_" + "a" * 43])
def test_a_secret_in_the_address_is_refused_even_beside_a_good_header(api, query):
    problem(api().get(f"{NOTES}?{query}"), 400, "token_in_query")
    problem(APIClient().get(f"{NOTES}?{query}"), 400, "token_in_query")


def test_a_token_opens_its_own_tenant_whatever_else_the_request_says(api, tenant, other_tenant):
    client = api(tenant=tenant)

    made = client.post(
        NOTES,
        {"name": "mine", "tenant": str(other_tenant.pk), "tenant_id": str(other_tenant.pk)},
        headers={"X-Tenant": "globex", "X-Tenant-Id": str(other_tenant.pk)},
    )

    assert made.status_code == 201
    assert (names_of(tenant), names_of(other_tenant)) == (["mine"], [])


@pytest.fixture
def ann(tenant) -> User:
    user = User.objects.create_user("ann")
    with tenant_scope(tenant.pk):
        Membership.objects.create(tenant=tenant, user=user, role=Role.OPERATOR)
    return user


def signed_in(user: User, **options) -> Client:
    client = APIClient(**options)
    client.force_login(user)
    return client


def test_a_member_who_signed_in_reads_their_tenant(ann, tenant):
    assert signed_in(ann).get(NOTES).json()["results"] == []


def test_a_session_may_change_something_only_with_a_csrf_token(ann, tenant):
    client = signed_in(ann, enforce_csrf_checks=True)

    problem(client.post(NOTES, {"name": "forged"}), 403, "csrf_failed")
    client.cookies["csrftoken"] = "a" * 32
    allowed = client.post(NOTES, {"name": "wanted"}, headers={"X-CSRFToken": "a" * 32})

    assert allowed.status_code == 201
    assert names_of(tenant) == ["wanted"]


def test_a_member_cannot_choose_a_tenant_of_others(ann, other_tenant):
    problem(signed_in(ann).get(NOTES, headers={"X-Tenant": "globex"}), 403, "not_a_member")


def test_somebody_of_several_tenants_is_asked_to_name_one(ann, other_tenant):
    with tenant_scope(other_tenant.pk):
        Membership.objects.create(tenant=other_tenant, user=ann, role=Role.VIEWER)
    client = signed_in(ann)

    refused = problem(client.get(NOTES), 403, "tenant_not_named")

    assert "acme, globex" in refused["detail"]
    assert client.get(NOTES, headers={"X-Tenant": "globex"}).status_code == 200


def test_a_superuser_must_name_a_tenant_and_may_name_any(tenant):
    client = signed_in(User.objects.create_superuser("root"))

    problem(client.get(NOTES), 403, "tenant_not_named")
    problem(client.get(NOTES, headers={"X-Tenant": "nowhere"}), 403, "not_a_member")
    assert client.get(NOTES, headers={"X-Tenant": "acme"}).status_code == 200


# What a role may do


@pytest.mark.parametrize(
    ("role", "statuses"),
    [
        ("viewer", {"get": 200, "decide": 403, "post": 403, "delete": 403}),
        ("reviewer", {"get": 200, "decide": 200, "post": 403, "delete": 403}),
        ("operator", {"get": 200, "decide": 200, "post": 201, "delete": 403}),
        ("admin", {"get": 200, "decide": 200, "post": 201, "delete": 204}),
    ],
)
def test_each_role_includes_the_ones_below_it(api, role, statuses):
    note = api("admin").post(NOTES, {"name": "work"}).json()["id"]
    client = api(role)

    assert client.get(f"{NOTES}{note}/").status_code == statuses["get"]
    assert client.post(f"{NOTES}{note}/decide/").status_code == statuses["decide"]
    assert client.post(NOTES, {"name": "more"}).status_code == statuses["post"]
    assert client.delete(f"{NOTES}{note}/").status_code == statuses["delete"]


def test_a_refusal_names_the_role_that_would_do(api):
    refused = problem(api("viewer").post(NOTES, {"name": "more"}), 403, "forbidden")

    assert refused["required_role"] == "operator"
    assert "operator" in refused["detail"]


@pytest.mark.parametrize(
    ("scopes", "read", "write"),
    [
        ([], 200, 201),
        (["read"], 200, 403),
        (["write"], 200, 201),
        (["notes:read"], 200, 403),
        (["notes:write"], 200, 201),
        (["other:write"], 403, 403),
    ],
)
def test_scopes_take_away_from_what_the_role_allows(api, scopes, read, write):
    client = api("operator", scopes=scopes)

    assert client.get(NOTES).status_code == read
    assert client.post(NOTES, {"name": "more"}).status_code == write


def test_scopes_never_add_to_a_role(api):
    problem(api("viewer", scopes=["write"]).post(NOTES, {"name": "more"}), 403, "forbidden")


def test_a_missing_scope_is_named(api):
    refused = problem(api("admin", scopes=["notes:read"]).post(NOTES, {"name": "more"}), 403, "forbidden")

    assert refused["required_scope"] == "notes:write"


def test_what_all_tenants_share_is_changed_by_platform_admins_only(api):
    assert api("viewer").get("/api/registry/").status_code == 200
    problem(api("admin").put("/api/registry/", {}), 403, "forbidden")
    assert api("admin", platform=True).put("/api/registry/", {}).status_code == 200


# What may be brought along


def post_raw(client, body: bytes, content_type: str = JSON, path: str = NOTES, **headers):
    return client.generic("POST", path, body, content_type=content_type, **headers)


@pytest.mark.parametrize(
    "body",
    [b"{", b'{"name": NaN}', b'{"name": "\\u0000"}', b'{"name": "\\ud800"}', b'{"n": 1e999}', b"\xff", b"{'name': 1}"],
)
def test_a_body_that_is_no_strict_json_is_400(api, body):
    problem(post_raw(api(), body), 400, "invalid_json")


def test_a_fault_in_a_body_is_named_by_its_path(api):
    refused = problem(post_raw(api(), b'{"params": {"list": [1, "a\\u0000b"]}}'), 400, "invalid_json")

    assert refused["errors"] == [{"path": "params.list[1]", "message": "contains a NUL character"}]


def test_a_body_that_is_nested_too_deep_is_400(api):
    problem(post_raw(api(), b'{"a":' * 100 + b"1" + b"}" * 100), 400, "invalid_json")


def test_a_body_above_the_limit_is_413_whether_announced_or_not(api, settings):
    settings.ORCHESTRATOR_MAX_BODY_BYTES = 100
    body = b'{"name": "' + b"a" * 100 + b'"}'

    refused = problem(post_raw(api(), body), 413, "body_too_large")

    assert "100 bytes" in refused["detail"]


def test_a_view_may_have_a_limit_of_its_own_and_take_a_list(api):
    assert post_raw(api(), b"[1, 2]", path="/api/batch/").json() == {"received": [1, 2]}
    problem(post_raw(api(), b'"' + b"a" * 2000 + b'"', path="/api/batch/"), 413, "body_too_large")


def test_a_repeated_key_is_refused_where_it_would_hide_a_setting(api):
    refused = problem(post_raw(api(), b'{"a": {"cap": 1, "cap": 2}}', path="/api/batch/"), 400, "invalid_json")

    assert refused["errors"][0]["path"] == "a"


@pytest.mark.parametrize("body", [b"[]", b'"text"', b"1", b"null", b"true"])
def test_a_body_that_is_no_object_is_400(api, body):
    refused = problem(post_raw(api(), body), 400, "validation_failed")

    assert refused["errors"] == [{"path": "", "message": "must be a JSON object"}]


@pytest.mark.parametrize("body", [b"", b"  \n "])
def test_an_empty_body_counts_as_an_empty_object(api, body):
    refused = problem(post_raw(api(), body), 400, "validation_failed")

    assert refused["errors"] == [{"path": "name", "message": "This field is required."}]


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/xml", ""]
)
def test_a_body_of_another_type_is_415(api, content_type):
    problem(post_raw(api(), b"name=a", content_type), 415, "unsupported_media_type")


def test_a_compressed_body_is_415(api):
    body = gzip.compress(b'{"name": "a"}')

    problem(post_raw(api(), body, HTTP_CONTENT_ENCODING="gzip"), 415, "unsupported_media_type")


def test_a_body_in_chunks_is_411_instead_of_being_taken_for_empty(api):
    refused = post_raw(api(), b"", CONTENT_LENGTH="", HTTP_TRANSFER_ENCODING="chunked")

    problem(refused, 411, "length_required")


def test_nonsense_is_refused_even_where_no_body_is_needed(api):
    note = api().post(NOTES, {"name": "work"}).json()["id"]

    problem(post_raw(api(), b"{", path=f"{NOTES}{note}/decide/"), 400, "invalid_json")


# How refusals read


def test_each_invalid_field_has_a_path_into_the_body(api):
    plan = {"steps": [{"depends_on": ["a"]}, {}, {"depends_on": ["ok", "NOT OK"], "retry": {"base-seconds": "x"}}]}

    refused = problem(api().post("/api/plans/", plan), 400, "validation_failed")

    assert [error["path"] for error in refused["errors"]] == ["steps[2].depends_on[1]", 'steps[2].retry["base-seconds"]']


def test_a_fault_of_the_whole_has_the_path_of_the_whole(api):
    refused = problem(api().post("/api/plans/", {"steps": []}), 400, "validation_failed")

    assert refused["errors"] == [{"path": "", "message": "A plan needs a step."}]


def test_an_object_of_another_tenant_reads_like_one_that_never_was(api, tenant, other_tenant):
    theirs = api(tenant=other_tenant).post(NOTES, {"name": "theirs"}).json()["id"]
    client = api(tenant=tenant)

    bodies = []
    for path in (f"{NOTES}{theirs}/", f"{NOTES}{uuid4()}/", f"{NOTES}no-uuid/", "/api/nowhere/", f"{NOTES}%00/"):
        body = problem(client.get(path), 404, "not_found")
        bodies.append({**body, "request_id": None})
    for change in (client.patch, client.delete):
        bodies.append({**problem(change(f"{NOTES}{theirs}/", {"name": "stolen"}), 404, "not_found"), "request_id": None})

    assert all(body == bodies[0] for body in bodies)
    assert names_of(other_tenant) == ["theirs"]


def test_an_unknown_method_is_405_and_names_the_known_ones_even_to_those_who_may_do_little(api):
    response = api("viewer").put(NOTES, {})

    problem(response, 405, "method_not_allowed")
    assert set(re.split(", ?", response["Allow"])) >= {"GET", "POST"}


def test_an_answer_in_another_format_is_406(api):
    problem(api().get(NOTES, HTTP_ACCEPT="application/xml"), 406, "not_acceptable")


def test_a_domain_error_says_what_it_is(api):
    response = api().get("/api/fail/occupied/")

    body = problem(response, 409, "occupied")
    assert (body["detail"], body["holder"]) == ("Ann is at it.", "user:ann")
    assert response["Retry-After"] == "3"


def test_a_registered_domain_error_brings_its_faults(api):
    body = problem(api().get("/api/fail/misdrawn/"), 400, "misdrawn")

    assert body["errors"] == [
        {"path": "steps[0]", "message": "no end"},
        {"path": "steps[1].when", "message": "no such step"},
    ]


def test_a_models_validation_error_is_a_400(api):
    body = problem(api().get("/api/fail/django/"), 400, "validation_failed")

    assert body["errors"] == [{"path": "name", "message": "too odd"}, {"path": "", "message": "does not add up"}]


def test_a_value_out_of_range_that_only_the_database_noticed_is_a_400(api):
    api().post(NOTES, {"name": "work"})

    problem(api().get("/api/cause/range/"), 400, "validation_failed")


def test_a_lost_race_for_a_unique_value_is_a_409(api):
    problem(api().get("/api/cause/twice/"), 409, "conflict")


def test_a_mistake_of_ours_tells_nothing_but_is_in_the_log(api, caplog):
    client = api()
    client.raise_request_exception = False

    with caplog.at_level(logging.ERROR):
        response = client.get("/api/fail/unknown/", headers={"X-Request-Id": "trace-7"})

    body = problem(response, 500, "internal_error")
    assert body["request_id"] == "trace-7"
    assert "hunter2" not in response.content.decode()
    assert "RuntimeError" not in response.content.decode()
    (record,) = [each for each in caplog.records if getattr(each, "action", "") == "request_failed"]
    assert "hunter2" in str(record.exc_info[1])
    assert record.tenant == "acme"


def test_a_database_that_does_not_answer_is_a_503_with_a_time_to_come_back(api):
    response = api().get("/api/fail/database/")

    body = problem(response, 503, "unavailable")
    assert "10.0.0.7" not in str(body)
    assert int(response["Retry-After"]) > 0


def test_a_database_that_is_down_before_the_caller_is_known_is_a_503_too(api, monkeypatch):
    client = api()
    monkeypatch.setattr("tenants.tokens._look_up", lambda digest: (_ for _ in ()).throw(OperationalError("down")))

    problem(client.get(NOTES), 503, "unavailable")


def test_a_failure_outside_of_the_apis_views_reads_the_same(client):
    client.raise_request_exception = False

    problem(client.get("/api/broken/"), 500, "internal_error")
    assert client.get("/broken/")["Content-Type"].startswith("text/html")


def test_a_forged_host_is_a_400_problem(client):
    problem(client.get(NOTES, HTTP_HOST="evil.example"), 400, "bad_request")


def test_a_request_id_is_taken_when_it_is_harmless_and_made_when_not(client):
    assert client.get("/api/x/", headers={"X-Request-Id": "abc-123.X_y"})["X-Request-Id"] == "abc-123.X_y"
    for offered in ("", "a" * 65, "two words", 'quote"', "line\u2028", "{}"):
        made = client.get("/api/x/", headers={"X-Request-Id": offered})["X-Request-Id"]
        assert re.fullmatch(r"[0-9a-f-]{36}", made)


# One request, one transaction


def test_a_handler_that_raises_leaves_nothing_behind(api, tenant, monkeypatch):
    client = api()
    client.raise_request_exception = False
    monkeypatch.setattr(notes_api.NoteViewSet, "fail_with", [RuntimeError("after writing")])

    problem(client.post(NOTES, {"name": "half"}), 500, "internal_error")

    assert names_of(tenant) == []
    assert (current_tenant(), current_alias()) == (None, "default")
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT count(*), nullif(current_setting('app.tenant_id', true), '') FROM activities_activity")
        assert cursor.fetchone() == (0, None)


def test_a_handler_that_answers_with_an_error_leaves_nothing_behind(api, tenant):
    assert api().post(f"{NOTES}half/").status_code == 409

    assert names_of(tenant) == []


def test_what_waits_for_the_commit_is_done_before_the_answer_leaves_and_only_then(api, monkeypatch):
    monkeypatch.setattr(notes_api.HookView, "done", done := [])

    api().post("/api/hook/", {"fail": True})
    assert done == []
    api().post("/api/hook/", {})
    assert done == ["after commit"]


def test_a_deadlock_is_tried_again_and_takes_effect_once(api, tenant, monkeypatch):
    monkeypatch.setattr(notes_api.NoteViewSet, "fail_with", [notes_api.deadlock(), notes_api.deadlock()])

    assert api().post(NOTES, {"name": "late"}).status_code == 201

    assert names_of(tenant) == ["late"]


def test_a_deadlock_that_comes_back_every_time_is_given_up(api, tenant, monkeypatch):
    monkeypatch.setattr(notes_api.NoteViewSet, "fail_with", [notes_api.deadlock() for _ in range(3)])

    problem(api().post(NOTES, {"name": "never"}), 503, "unavailable")

    assert names_of(tenant) == []


def test_a_thousand_mixed_requests_of_two_tenants_over_shared_connections_leak_nothing(api, tenant, other_tenant):
    clients = {each.slug: api(tenant=each) for each in (tenant, other_tenant)}
    ids = {slug: client.post(NOTES, {"name": slug}).json()["id"] for slug, client in clients.items()}
    other = {"acme": "globex", "globex": "acme"}
    barrier = threading.Barrier(2)

    def ask(seed: int) -> list[str]:
        chance, wrong = Random(seed), []
        barrier.wait()
        for _ in range(500):
            me = chance.choice(list(clients))
            client = clients[me]
            match chance.randrange(4):
                case 0:
                    seen = {note["name"] for note in client.get(NOTES).json()["results"]}
                    wrong += [] if seen == {me} else [f"{me} saw {seen}"]
                case 1:
                    status = client.get(f"{NOTES}{ids[other[me]]}/").status_code
                    wrong += [] if status == 404 else [f"{me} got {status}"]
                case 2:
                    status = client.post(f"{NOTES}half/").status_code
                    wrong += [] if status == 409 else [f"{me} got {status}"]
                case 3:
                    found = client.get(f"{NOTES}{ids[me]}/").json()["name"]
                    wrong += [] if found == me else [f"{me} read {found}"]
        connections.close_all()
        return wrong

    with ThreadPoolExecutor(max_workers=2) as pool:
        wrong = [each for found in pool.map(ask, range(2)) for each in found]

    assert wrong == []


# The platform's admin


def test_the_admin_sees_all_tenants_only_while_a_superuser_is_there(client, monkeypatch):
    seen = []
    inside = notes_api.HttpResponse("inside")
    monkeypatch.setattr(notes_api.urlpatterns[-2], "callback", lambda request: seen.append(current_alias()) or inside)
    client.force_login(User.objects.create_superuser("root"))

    assert client.get("/admin/").status_code == 200

    assert seen == ["system"]
    assert current_alias() == "default"


def test_staff_who_are_no_superusers_come_no_further_than_the_admins_door(client):
    client.force_login(User.objects.create_user("clerk", is_staff=True))

    assert client.get("/admin/").status_code == 403
    assert client.get("/admin/login/").status_code == 200


def test_strangers_are_left_to_the_admins_own_login(client):
    assert client.get("/admin/").status_code == 200  # the admin itself redirects; this stand-in does not
