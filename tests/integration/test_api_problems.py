"""Every error of the API is a problem document with a stable code and without internal details."""

from __future__ import annotations

import logging
import re
from uuid import uuid4

import pytest
from django.core.wsgi import get_wsgi_application
from django.db import OperationalError
from django.test import RequestFactory

from tests.answers import problem
from tests.cases import in_one_test
from tests.integration.notes_api import names_of

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.urls("tests.integration.notes_api")]

NOTES = "/api/notes/"


def test_each_invalid_field_has_a_path_into_the_body(api):
    plan = {
        "steps": [{"depends_on": ["a"]}, {}, {"depends_on": ["ok", "NOT OK"], "retry": {"base-seconds": "x"}}]
    }

    refused = problem(api().post("/api/plans/", plan), 400, "validation_failed")

    assert [error["path"] for error in refused["errors"]] == [
        "steps[2].depends_on[1]",
        'steps[2].retry["base-seconds"]',
    ]


def test_an_error_of_the_whole_body_has_the_path_of_the_whole(api):
    refused = problem(api().post("/api/plans/", {"steps": []}), 400, "validation_failed")

    assert refused["errors"] == [{"path": "", "message": "A plan needs a step."}]


def test_an_object_of_another_tenant_reads_like_one_that_never_existed(api, tenant, other_tenant):
    theirs = api(tenant=other_tenant).post(NOTES, {"name": "theirs"}).json()["id"]
    client = api(tenant=tenant)

    bodies = []
    for path in (
        f"{NOTES}{theirs}/",
        f"{NOTES}{uuid4()}/",
        f"{NOTES}no-uuid/",
        "/api/nowhere/",
        f"{NOTES}%00/",
    ):
        body = problem(client.get(path), 404, "not_found")
        bodies.append({**body, "request_id": None})
    for change in (client.patch, client.delete):
        bodies.append(
            {**problem(change(f"{NOTES}{theirs}/", {"name": "stolen"}), 404, "not_found"), "request_id": None}
        )

    assert all(body == bodies[0] for body in bodies)
    assert names_of(other_tenant) == ["theirs"]


@in_one_test("how", ["hidden", "missing"])
def test_a_404_discloses_no_details(api, how):
    assert problem(api().get(f"/api/fail/{how}/"), 404, "not_found")["detail"] == "Not found."


def test_an_unknown_method_is_405_and_lists_the_known_ones_for_every_role(api):
    response = api("viewer").put(NOTES, {})

    problem(response, 405, "method_not_allowed")
    assert set(re.split(", ?", response["Allow"])) >= {"GET", "POST"}


def test_an_answer_in_another_format_is_406(api):
    problem(api().get(NOTES, HTTP_ACCEPT="application/xml"), 406, "not_acceptable")


def test_a_domain_error_has_its_own_code_and_text(api):
    response = api().get("/api/fail/occupied/")

    body = problem(response, 409, "occupied")
    assert (body["detail"], body["holder"]) == ("Ann is at it.", "user:ann")
    assert response["Retry-After"] == "3"


def test_a_registered_domain_error_contains_its_list_of_errors(api):
    body = problem(api().get("/api/fail/misdrawn/"), 400, "misdrawn")

    assert body["errors"] == [
        {"path": "steps[0]", "message": "no end"},
        {"path": "steps[1].when", "message": "no such step"},
    ]


def test_a_models_validation_error_is_a_400(api):
    body = problem(api().get("/api/fail/django/"), 400, "validation_failed")

    assert body["errors"] == [
        {"path": "name", "message": "too odd"},
        {"path": "", "message": "does not add up"},
    ]


def test_a_value_that_only_the_database_finds_out_of_range_is_a_400(api):
    api().post(NOTES, {"name": "work"})

    problem(api().get("/api/cause/range/"), 400, "validation_failed")


def test_a_lost_race_for_a_unique_value_is_a_409(api):
    problem(api().get("/api/cause/twice/"), 409, "conflict")


def test_a_row_that_was_deleted_before_another_could_refer_to_it_is_a_409(api):
    problem(api().get("/api/cause/gone/"), 409, "conflict")


def test_an_internal_error_discloses_nothing_and_is_logged(api, caplog):
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


def test_an_error_of_a_library_with_attributes_of_domain_errors_is_internal(api):
    client = api()
    client.raise_request_exception = False

    assert "hunter2" not in str(problem(client.get("/api/fail/foreign/"), 500, "internal_error"))


def test_a_database_that_does_not_answer_is_a_503_with_a_retry_time(api):
    response = api().get("/api/fail/database/")

    body = problem(response, 503, "unavailable")
    assert "10.0.0.7" not in str(body)
    assert int(response["Retry-After"]) > 0


def test_a_database_that_is_down_before_the_caller_is_known_is_a_503_too(api, monkeypatch):
    client = api()
    monkeypatch.setattr(
        "tenants.tokens._look_up", lambda digest: (_ for _ in ()).throw(OperationalError("down"))
    )

    problem(client.get(NOTES), 503, "unavailable")


def test_an_error_outside_of_the_api_views_has_the_same_form(client):
    client.raise_request_exception = False

    problem(client.get("/api/broken/"), 500, "internal_error")
    assert client.get("/broken/")["Content-Type"].startswith("text/html")


def test_a_forged_host_is_a_400_problem(client):
    problem(client.get(NOTES, HTTP_HOST="evil.example"), 400, "bad_request")


def test_a_safe_request_id_is_kept_and_an_unsafe_one_is_replaced(client):
    assert client.get("/api/x/", headers={"X-Request-Id": "abc-123.X_y"})["X-Request-Id"] == "abc-123.X_y"
    for offered in ("", "a" * 65, "two words", 'quote"', "line\u2028", "{}"):
        request_id = client.get("/api/x/", headers={"X-Request-Id": offered})["X-Request-Id"]
        assert re.fullmatch(r"[0-9a-f-]{36}", request_id)


@in_one_test("path", ["/healthz", "/login/", "/api/v1/none/"])
@pytest.mark.urls("orchestrator.urls")
def test_a_head_request_gets_the_length_of_the_body_and_no_body(path):
    """Calls the WSGI application itself, because Django's test client removes the body as well."""
    lengths, bodies = [], []
    for method in ("GET", "HEAD"):
        environ = RequestFactory().generic(method, path).environ
        answer = get_wsgi_application()(
            environ, lambda status, headers: lengths.append(dict(headers)["Content-Length"])
        )
        bodies.append(b"".join(answer))

    assert bodies[1] == b""
    assert lengths == [str(len(bodies[0]))] * 2
