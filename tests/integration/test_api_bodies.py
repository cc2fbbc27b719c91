"""The body of a request is one JSON document of bounded size and shape."""

from __future__ import annotations

import gzip

import pytest

from tests.answers import problem
from tests.cases import in_one_test

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.urls("tests.integration.notes_api")]

NOTES = "/api/notes/"
JSON = "application/json"


def post_raw(client, body: bytes, content_type: str = JSON, path: str = NOTES, **headers):
    return client.generic("POST", path, body, content_type=content_type, **headers)


@in_one_test(
    "body",
    [
        b"{",
        b'{"name": NaN}',
        b'{"name": "\\u0000"}',
        b'{"name": "\\ud800"}',
        b'{"n": 1e999}',
        b"\xff",
        b"{'name': 1}",
    ],
)
def test_a_body_that_is_not_strict_json_is_400(api, body):
    problem(post_raw(api(), body), 400, "invalid_json")


def test_an_error_in_a_body_names_its_path(api):
    refused = problem(post_raw(api(), b'{"params": {"list": [1, "a\\u0000b"]}}'), 400, "invalid_json")

    assert refused["errors"] == [{"path": "params.list[1]", "message": "contains a NUL character"}]


def test_a_body_that_is_nested_too_deep_is_400(api):
    problem(post_raw(api(), b'{"a":' * 100 + b"1" + b"}" * 100), 400, "invalid_json")


def test_a_body_above_the_limit_is_413_with_and_without_a_content_length(api, settings):
    settings.ORCHESTRATOR_MAX_BODY_BYTES = 100
    body = b'{"name": "' + b"a" * 100 + b'"}'

    refused = problem(post_raw(api(), body), 413, "body_too_large")

    assert "100 bytes" in refused["detail"]


def test_a_view_may_have_a_limit_of_its_own_and_take_a_list(api):
    assert post_raw(api(), b"[1, 2]", path="/api/batch/").json() == {"received": [1, 2]}
    problem(post_raw(api(), b'"' + b"a" * 2000 + b'"', path="/api/batch/"), 413, "body_too_large")


def test_a_repeated_key_is_refused_where_one_would_hide_the_other(api):
    refused = problem(
        post_raw(api(), b'{"a": {"cap": 1, "cap": 2}}', path="/api/batch/"), 400, "invalid_json"
    )

    assert refused["errors"][0]["path"] == "a"


@in_one_test("body", [b"[]", b'"text"', b"1", b"null", b"true"])
def test_a_body_that_is_not_an_object_is_400(api, body):
    refused = problem(post_raw(api(), body), 400, "validation_failed")

    assert refused["errors"] == [{"path": "", "message": "must be a JSON object"}]


@in_one_test("body", [b"", b"  \n "])
def test_an_empty_body_counts_as_an_empty_object(api, body):
    refused = problem(post_raw(api(), body), 400, "validation_failed")

    assert refused["errors"] == [{"path": "name", "message": "is required"}]


@in_one_test(
    "content_type",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/xml",
        "",
    ],
)
def test_a_body_of_another_type_is_415(api, content_type):
    problem(post_raw(api(), b"name=a", content_type), 415, "unsupported_media_type")


def test_a_compressed_body_is_415(api):
    body = gzip.compress(b'{"name": "a"}')

    problem(post_raw(api(), body, HTTP_CONTENT_ENCODING="gzip"), 415, "unsupported_media_type")


def test_a_body_in_chunks_is_411_instead_of_being_taken_for_empty(api):
    refused = post_raw(api(), b"", CONTENT_LENGTH="", HTTP_TRANSFER_ENCODING="chunked")

    problem(refused, 411, "length_required")


def test_invalid_json_is_refused_even_where_no_body_is_needed(api):
    note = api().post(NOTES, {"name": "work"}).json()["id"]

    problem(post_raw(api(), b"{", path=f"{NOTES}{note}/decide/"), 400, "invalid_json")
