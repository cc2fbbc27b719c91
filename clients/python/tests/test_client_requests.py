"""From a call to a request and from an answer to an object or an exception; what is repeated, and what is not."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from email.utils import format_datetime
from uuid import UUID

import httpx
import pytest
from answering import TOKEN, Answering, problem, said

import orchestrator_client as oc
from orchestrator_client import errors

ACTIVITY = {"id": "a-1", "name": "x", "status": "done"}


def test_what_is_left_out_is_not_sent_and_none_is_sent_as_null() -> None:
    server = Answering(said(201, ACTIVITY))

    server.client().activities.create(name="x", agent_role="qa", params=None)

    assert server.bodies() == [{"name": "x", "agent_role": "qa", "params": None}]
    assert server.requests[0].url.path == "/api/v1/activities/"
    assert server.requests[0].headers["authorization"] == f"Bearer {TOKEN}"


def test_fields_that_the_client_does_not_know_are_sent_as_well() -> None:
    server = Answering(said(201, ACTIVITY))

    server.client().activities.create(name="x", agent_role="qa", invented_later=7)

    assert server.bodies()[0]["invented_later"] == 7


def test_a_document_and_fields_make_one_body() -> None:
    server = Answering(said(200, {}))

    server.client().budgets.update("b-1", {"name": "a", "cap": 1}, cap=2, etag='"3"')

    assert server.bodies() == [{"name": "a", "cap": 2}]
    assert server.requests[0].headers["if-match"] == '"3"'
    assert "idempotency-key" not in server.requests[0].headers


def test_what_a_call_does_not_have_is_a_type_error_before_anything_is_sent() -> None:
    server = Answering(said(200, {}))

    with pytest.raises(TypeError, match="notes"):
        server.client().activities.reject("a-1")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="cannot be combined"):
        server.client().activities.create_many([{}], extra=1)

    assert server.requests == []


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("../tokens", "/api/v1/skills/..%2Ftokens/"),
        ("a b?c#d", "/api/v1/skills/a%20b%3Fc%23d/"),
        ("%2e%2e", "/api/v1/skills/%252e%252e/"),
    ],
)
def test_no_value_leads_to_another_address(given: str, path: str) -> None:
    server = Answering(said(200, {}))

    server.client().skills.get(given)

    assert server.requests[0].url.raw_path.decode() == path


@pytest.mark.parametrize("given", ["", ".", ".."])
def test_a_value_that_would_leave_the_address_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="key"):
        Answering(said(200, {})).client().skills.get(given)


def test_queries_are_written_as_the_api_reads_them() -> None:
    server = Answering(said(200, {"results": [], "next": None}))
    after = datetime(2026, 3, 1, tzinfo=timezone.utc)

    list(server.client().activities.list(status=["done", "failed"], created_after=after, search=None))
    list(server.client().inbox.list(mine=True))
    Answering.client(server).usage.report(from_="2026-03-01", group_by=["role", "day"])

    asked = [dict(request.url.params) for request in server.requests]
    assert asked == [
        {"status": "done,failed", "created_after": "2026-03-01T00:00:00+00:00"},
        {"mine": "true"},
        {"from": "2026-03-01", "group_by": "role,day"},
    ]


def test_some_writing_calls_have_a_query_too() -> None:
    server = Answering(said(200, {}))

    server.client().datasets.add_rows("t", rows=[{"a": 1}], replace=True)

    assert dict(server.requests[0].url.params) == {"replace": "true"}
    assert server.bodies() == [{"rows": [{"a": 1}]}]


def test_times_ids_and_exact_decimals_of_a_body_are_written_as_the_api_reads_them() -> None:
    server = Answering(said(200, ACTIVITY))
    moment, name = datetime(2026, 3, 1, tzinfo=timezone.utc), UUID("0198a5c2-7d3e-7c41-9c0a-6f2b1d4e8a90")

    server.client().activities.create(name="x", not_before=moment, metadata={"id": name})
    server.client().budgets.create(name="b", cap=Decimal("10.10"))

    assert server.bodies() == [
        {"name": "x", "not_before": "2026-03-01T00:00:00+00:00", "metadata": {"id": str(name)}},
        {"name": "b", "cap": "10.10"},
    ]
    assert {request.headers["content-type"] for request in server.requests} == {"application/json"}
    with pytest.raises(TypeError, match="A set cannot be sent"):
        server.client().activities.create(name="x", metadata={"ids": {name}})


def test_a_token_may_be_read_from_a_file_with_its_line_break() -> None:
    with oc.Client("http://h", "orc_secret\n") as client:
        assert client._http.headers["authorization"] == "Bearer orc_secret"


@pytest.mark.parametrize("token", ["", "orc_a\norc_b", "orc_ä", "orc_a b"])
def test_a_token_that_no_header_can_contain_is_refused_without_repeating_it(token: str) -> None:
    for made in (oc.Client, oc.AsyncClient, oc.AgentRun, oc.AsyncAgentRun):
        with pytest.raises(ValueError, match="visible ASCII") as caught:
            made("http://h", token)
        assert "orc_" not in str(caught.value)


@pytest.mark.parametrize("base", ["http://h", "http://h/", "http://h/api/v1", "http://h/api/v1/"])
def test_the_address_may_be_given_in_full_or_not(base: str) -> None:
    with oc.Client(base, "t") as client:
        assert str(client._http.base_url) == "http://h/api/v1/"


def test_a_client_does_not_show_its_token() -> None:
    assert TOKEN not in repr(Answering(said(200, {})).client())
    assert TOKEN not in repr(Answering(said(200, {})).async_client())


def test_an_answer_is_a_dict_with_attributes_all_the_way_down_and_knows_its_version() -> None:
    body = {**ACTIVITY, "error": {"message": "no"}, "later": [{"a": 1}]}
    found = Answering(said(200, body, ETag='"5"')).client().activities.get("a-1")

    assert (found.status, found["status"], found.etag) == ("done", "done", '"5"')
    assert (found.error.message, found.later[0].a) == ("no", 1)  # type: ignore[union-attr]
    assert found == body
    with pytest.raises(AttributeError, match="Activity has no field 'lost'"):
        _ = found.lost


def test_no_content_is_none_and_text_is_text() -> None:
    assert Answering(httpx.Response(204)).client().budgets.delete("b") is None
    picture = httpx.Response(200, text="<svg/>", headers={"content-type": "image/svg+xml"})
    assert Answering(picture).client().pipeline_runs.picture("r") == "<svg/>"


def test_every_class_of_an_error_can_be_imported_from_the_package() -> None:
    classes = {
        name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)
    }

    assert classes <= set(oc.__all__)


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b"\xff"])
def test_what_is_not_of_this_api_is_said_to_be_so(body: bytes) -> None:
    client = Answering(httpx.Response(200, content=body)).client()

    with pytest.raises(oc.UnreadableAnswer):
        client.activities.get("a")
    with pytest.raises(oc.UnreadableAnswer):
        list(client.activities.list())


# Refusals


def test_a_refusal_is_the_class_of_its_code_with_every_fault_by_path() -> None:
    faults = [{"path": "params.a", "message": "Too long."}, {"path": "name", "message": "Missing."}]
    server = Answering(problem(400, "validation_failed", "Bad.", errors=faults, request_id="r-9"))

    with pytest.raises(oc.ValidationFailed) as caught:
        server.client().activities.create(name="")

    error = caught.value
    assert [fault.path for fault in error.errors] == ["params.a", "name"]
    assert (error.status, error.code, error.request_id) == (400, "validation_failed", "r-9")
    assert str(error) == "400 validation_failed: Bad. (params.a: Too long.; name: Missing.) [request r-9]"
    assert error.idempotency_key == server.requests[0].headers["idempotency-key"]
    assert isinstance(error, oc.BadRequest)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (401, "not_authenticated", oc.Unauthenticated),
        (403, "forbidden", oc.Forbidden),
        (404, "not_found", oc.NotFound),
        (409, "already_decided", oc.AlreadyDecided),
        (409, "something_new", oc.Conflict),
        (412, "precondition_failed", oc.PreconditionFailed),
        (422, "idempotency_key_reused", oc.IdempotencyKeyReused),
        (418, "teapot", oc.ApiError),
        (500, "internal_error", oc.ServerError),
        (502, "bad_gateway", oc.ServerError),
    ],
)
def test_other_refusals_are_final_and_have_their_class(
    status: int, code: str, kind: type[oc.ApiError]
) -> None:
    server = Answering(problem(status, code, decided_by="ann"))

    with pytest.raises(kind) as caught:
        server.client().activities.approve("a-1")

    assert type(caught.value) is kind
    assert caught.value.members["decided_by"] == "ann"
    assert len(server.requests) == 1
    assert server.pauses == []


@pytest.mark.parametrize("body", [b"<html>Bad gateway</html>", b"", b"[]", b'{"errors": [1, "x"]}', b"\xff"])
def test_a_refusal_by_something_else_on_the_way_is_told_by_its_status(body: bytes) -> None:
    with pytest.raises(oc.ServerError) as caught:
        Answering(httpx.Response(502, content=body)).client().activities.get("a")

    assert (caught.value.code, caught.value.errors) == ("http_502", ())


def test_a_redirect_is_not_followed_and_the_token_goes_nowhere() -> None:
    server = Answering(httpx.Response(307, headers={"location": "http://elsewhere.test/"}))

    with pytest.raises(oc.ApiError, match="307"):
        server.client().activities.get("a")

    assert [request.url.host for request in server.requests] == ["orchestrator.test"]


# Repetitions

PASSING = [
    problem(429, "rate_limited"),
    problem(503, "unavailable"),
    httpx.ConnectError("refused"),
    httpx.ReadTimeout("slow"),
    httpx.RemoteProtocolError("cut off"),
]


@pytest.mark.parametrize("fault", PASSING)
def test_a_passing_fault_is_waited_out_under_the_same_key(fault: httpx.Response | Exception) -> None:
    server = Answering(fault, fault, said(201, ACTIVITY))

    made = server.client().activities.create(name="x")

    assert made.id == "a-1"
    assert len({request.headers["idempotency-key"] for request in server.requests}) == 1
    assert len({request.content for request in server.requests}) == 1
    assert server.pauses == [0.5, 1.0]


@pytest.mark.parametrize("fault", PASSING)
def test_it_is_the_same_for_those_who_await(fault: httpx.Response | Exception) -> None:
    server = Answering(fault, said(201, ACTIVITY))

    async def create() -> oc.Activity:
        async with server.async_client() as client:
            return await client.activities.create(name="x")

    assert asyncio.run(create()).id == "a-1"
    assert len({request.headers["idempotency-key"] for request in server.requests}) == 1
    assert server.pauses == [0.5]


def test_a_delete_that_is_retried_after_a_lost_answer_succeeds_when_nothing_is_left() -> None:
    lost, gone = httpx.ReadTimeout("slow"), problem(404, "not_found")

    async def delete() -> None:
        async with Answering(lost, gone).async_client() as client:
            await client.skills.delete("a")

    Answering(lost, gone).client().skills.delete("a")
    asyncio.run(delete())

    for never_sent in (httpx.ConnectError("refused"), problem(503, "unavailable")):
        with pytest.raises(oc.NotFound):
            Answering(never_sent, gone).client().skills.delete("a")


def test_every_post_has_a_key_of_its_own_unless_one_is_given() -> None:
    server = Answering(said(200, ACTIVITY))
    client = server.client()

    client.activities.start("a")
    client.activities.start("a")
    client.activities.start("a", idempotency_key="mine")

    keys = [request.headers["idempotency-key"] for request in server.requests]
    assert len(set(keys)) == 3
    assert keys[2] == "mine"
    for key in ("", "order 1", "schlüssel", "k\n"):
        with pytest.raises(ValueError, match="idempotency_key"):
            client.activities.start("a", idempotency_key=key)
    assert len(server.requests) == 3


def test_in_the_end_the_refusal_is_raised_with_when_to_come_again() -> None:
    server = Answering(httpx.Response(429, json={"code": "backlog_full"}, headers={"retry-after": "7"}))

    with pytest.raises(oc.BacklogFull) as caught:
        server.client().activities.create(name="x")

    assert caught.value.retry_after == 7
    assert server.pauses == [7, 7, 7]
    assert len(server.requests) == 4


def test_in_the_end_a_lost_connection_is_told_with_the_key_to_ask_again() -> None:
    server = Answering(httpx.ConnectError("refused"))

    with pytest.raises(oc.ConnectionFailed) as caught:
        server.client(retries=oc.RetryPolicy(max_retries=1)).activities.create(name="x")

    assert caught.value.idempotency_key == server.requests[0].headers["idempotency-key"]
    assert len(server.requests) == 2


def test_a_long_retry_after_is_not_sat_out() -> None:
    server = Answering(httpx.Response(429, json={}, headers={"retry-after": "3600"}))

    with pytest.raises(oc.RateLimited) as caught:
        server.client().activities.get("a")

    assert (caught.value.retry_after, server.pauses) == (3600, [])


def test_retry_after_may_be_a_date() -> None:
    moment = format_datetime(datetime.now(timezone.utc) + timedelta(seconds=20), usegmt=True)
    server = Answering(httpx.Response(503, headers={"retry-after": moment}), said(200, ACTIVITY))

    server.client().activities.get("a")

    assert 15 < server.pauses[0] <= 20


@pytest.mark.parametrize("value", ["soon", "-3", "1e3", "²", "", f"Mon, 01 Jan {10**20} 00:00:00 GMT"])
def test_an_unreadable_retry_after_counts_as_none(value: str) -> None:
    headers = [(b"retry-after", value.encode())]
    server = Answering(httpx.Response(503, headers=headers), said(200, ACTIVITY))

    server.client().activities.get("a")

    assert server.pauses == [0.5]


def test_pauses_grow_to_a_limit_and_are_shortened_by_chance() -> None:
    policy = oc.RetryPolicy(max_retries=9, max_seconds=4, chance=lambda: 1.0)
    server = Answering(httpx.ConnectError("refused"))

    with pytest.raises(oc.ConnectionFailed):
        server.client(retries=policy).activities.get("a")

    assert server.pauses == [0.25, 0.5, 1, 2, 2, 2, 2, 2, 2]


# Pages


def test_a_list_is_read_page_by_page_as_it_is_used() -> None:
    server = Answering(
        said(
            200,
            {"results": [{"id": "1"}, {"id": "2"}], "next": "http://proxied.test/x/?cursor=c%3D2&limit=2"},
        ),
        said(200, {"results": [{"id": "3"}], "next": None}),
    )
    entries = iter(server.client().activities.list(status="done", limit=2))

    assert next(entries).id == "1"
    assert len(server.requests) == 1
    assert [entry.id for entry in entries] == ["2", "3"]
    assert dict(server.requests[1].url.params) == {"status": "done", "limit": "2", "cursor": "c=2"}
    assert {request.url.host for request in server.requests} == {"orchestrator.test"}


def test_the_first_entry_of_a_list_needs_one_page() -> None:
    server = Answering(said(200, {"results": [{"id": "1"}], "next": "http://x/?cursor=2"}))
    found = server.client().activities.list().first()

    assert found is not None
    assert (found.id, len(server.requests)) == ("1", 1)
    assert Answering(said(200, {"results": [], "next": None})).client().activities.list().first() is None


def test_lists_can_be_awaited() -> None:
    server = Answering(
        said(200, {"results": [{"id": "1"}], "next": "http://x/?cursor=2"}),
        said(200, {"results": [{"id": "2"}], "next": None}),
    )

    async def read() -> list[str]:
        async with server.async_client() as client:
            return [entry.id async for entry in client.activities.list()]

    assert asyncio.run(read()) == ["1", "2"]


# Waiting


def test_waiting_looks_until_the_work_is_settled() -> None:
    server = Answering(said(200, {**ACTIVITY, "status": "created"}), said(200, ACTIVITY))

    assert server.client().wait("a-1", timeout=10).status == "done"
    assert server.pauses == [0.2]


def test_waiting_ends_with_what_was_seen_last() -> None:
    server = Answering(said(200, {**ACTIVITY, "status": "created"}))

    with pytest.raises(oc.WaitTimedOut) as caught:
        server.client().wait("a-1", timeout=3)

    assert caught.value.activity.status == "created"
    assert sum(server.pauses) == pytest.approx(3)


def test_waiting_can_be_awaited_and_can_end_when_somebody_is_asked() -> None:
    server = Answering(
        said(200, {**ACTIVITY, "status": "in_progress"}), said(200, {**ACTIVITY, "status": "blocked"})
    )

    async def wait() -> oc.Activity:
        async with server.async_client() as client:
            return await client.wait("a-1", until=oc.SETTLED | oc.NEEDS_SOMEBODY)

    assert asyncio.run(wait()).status == "blocked"


def test_a_client_says_whether_it_was_closed() -> None:
    async def awaited() -> list[bool]:
        client = oc.AsyncClient("http://127.0.0.1:1", TOKEN)
        before = client.is_closed
        await client.close()
        return [before, client.is_closed]

    client = oc.Client("http://127.0.0.1:1", TOKEN)
    before = client.is_closed
    client.close()

    assert [before, client.is_closed] == asyncio.run(awaited()) == [False, True]
