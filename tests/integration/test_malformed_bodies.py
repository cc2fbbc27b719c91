"""Malformed bodies are refused by every operation with a 4xx status, never with 500.

The operations come from the OpenAPI document, so that new ones are tested as well.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, islice
from typing import Any

import pytest

from activities.api.serializers import largest_body_with_output
from pipelines.timing.cron import Cron, CronError
from tenants.models import Tenant
from tests.accepted_work import accept_work
from tests.answers import problem
from tests.api_objects import ApiObjects
from tests.cases import in_one_test
from tests.engine import Engine
from tests.integration.outbound_addresses.schema import members_of
from tests.integration.test_api_openapi import CALLBACKS, operations
from tests.tickers import body as schedule

pytestmark = pytest.mark.long

REFUSED = {400, 404, 409, 411, 413, 415, 422}
JSON = "application/json"
WITH_BODY = [(method, address) for method, address, _ in operations() if method in ("post", "put", "patch")]


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


#: Bodies that no operation may accept, by their fault.
MALFORMED: dict[str, bytes] = {
    "nothing that is JSON": b"name=x",
    "cut off": b'{"name": "x"',
    "followed by more": b"{} {}",
    "a list": b"[]",
    "a text": b'"name"',
    "a number": b"1",
    "true": b"true",
    "null": b"null",
    "NaN": b'{"name": NaN}',
    "Infinity": b'{"name": [Infinity, -Infinity]}',
    "a number beyond all": b'{"name": 1e999}',
    "an integer beyond 64 bits": b'{"name": 9223372036854775808}',
    "an integer of thousands of digits": b'{"name": ' + b"9" * 5_000 + b"}",
    "a NUL": b'{"name": "a\\u0000b"}',
    "a NUL in a key": b'{"na\\u0000me": 1}',
    "a lone surrogate": b'{"name": "\\ud800"}',
    "a lone surrogate in a key": b'{"\\udfff": 1}',
    "half a letter": b'{"name": "\xff\xfe"}',
    "an encoded surrogate": b'{"name": "\xed\xa0\x80"}',
    "another encoding": '{"name": "x"}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"name": "x"}',
    "33 levels": nested(33),
    "5,000 levels": nested(5_000),
    "lists all the way down": b'{"a":' + b"[" * 40_000 + b"]" * 40_000 + b"}",
    "depth behind a repeated key": b'{"a":' + nested(2_000) + b',"a":1}',
    "10,001 values": b'{"a":[' + b"0," * 10_000 + b"0]}",
    "comments": b'{/* x */ "name": "x"}',
    "single quotes": b"{'name': 'x'}",
    "an unknown member": b'{"__proto__": {"admin": true}, "no such member": 1}',
}
#: Those that are valid JSON, so that the serializer of each operation must refuse them.
VALID_JSON = ("a list", "a text", "null", "a NUL", "an unknown member")
SHARES, SHARES_OF_VALUES = 8, 5
#: Values of unexpected types, sizes and syntax.
ODD_VALUES: list[Any] = [
    None, [], {}, -1, 2**63 - 1, 1e308, True, "", "x" * 20_001, {"$gt": ""}, [[[]]], "{{ 7*7 }}%s{0.__class__}", "\u202e\u2028\ufeff",
]  # fmt: skip


NO_SUCH_ROLE = "'none-such' is not an enabled role of the registry; GET /api/v1/agents/ lists them"


def _send(client: Any, method: str, place: str, raw: bytes, kind: str = JSON, **extra: Any) -> Any:
    client.raise_request_exception = False  # an internal error is an answer here
    return client.generic(method.upper(), place, raw, kind, **extra)


def senders(api_objects: ApiObjects, api: Any) -> Iterator[tuple[str, str, Any]]:
    """Every operation with a body, and a function that sends it a body with the right credential."""
    admin = api("admin", platform=True)
    for method, address in WITH_BODY:
        client = api_objects.agent.client if address.startswith(CALLBACKS) else admin
        send = partial(_send, client, method, api_objects.address(address))
        yield method, address, send


def test_there_are_operations_with_bodies() -> None:
    assert len(WITH_BODY) > 55


def malformed_bodies_are_refused_by_every_operation(api: Any, api_objects: ApiObjects) -> None:
    """One parser reads them all, so each operation gets a share, and those that its own serializer must refuse.

    The OpenAPI document names the status of each answer, and each refusal has the form of all errors.
    """
    documented = {(method, address): operation["responses"] for method, address, operation in operations()}
    wrong = []
    for turn, (method, address, send) in enumerate(senders(api_objects, api)):
        shares = {
            name: raw
            for place, (name, raw) in enumerate(MALFORMED.items())
            if place % SHARES == turn % SHARES
        }
        for name, raw in {**shares, **{name: MALFORMED[name] for name in VALID_JSON}}.items():
            answer = send(raw)
            status = answer.status_code
            if str(status) not in documented[method, address]:
                wrong.append((method, address, name, f"{status} is not documented"))
            if status >= 400:
                problem(answer, status, answer.json()["code"])
            if (
                status not in REFUSED
                and not (name == "an unknown member" and _may_be_newer(address))
                and not (
                    name == "a list" and address.endswith("/rows/")  # rows are a list
                )
            ):
                wrong.append((method, address, name, status))

    assert wrong == []


def _may_be_newer(address: str) -> bool:
    """Reports of agents may have unknown members, because agents may be newer than the platform."""
    return address.startswith(CALLBACKS) and "tools" not in address


def bodies_of_other_content_types_and_encodings_are_refused(api: Any, api_objects: ApiObjects) -> None:
    """One function checks them, so each operation gets two."""
    form = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n--x--\r\n'
    bomb = gzip.compress(b"0" * 1_000_000)
    entity = b"<!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]><a>&b;</a>"
    others: list[tuple[str, Callable[[Any], Any]]] = [
        ("gzip", lambda send: send(gzip.compress(b'{"name": "x"}'), HTTP_CONTENT_ENCODING="gzip")),
        ("a bomb", lambda send: send(bomb, HTTP_CONTENT_ENCODING="x-gzip, identity")),
        ("xml", lambda send: send(entity, "application/xml")),
        ("yaml", lambda send: send(b"!!python/object/apply:os.system ['true']", "application/yaml")),
        ("a form", lambda send: send(b"name=x&agent_role=qa", "application/x-www-form-urlencoded")),
        ("parts", lambda send: send(form, "multipart/form-data; boundary=x")),
        ("pickle", lambda send: send(b"\x80\x04.", "application/octet-stream")),
    ]
    wrong, turns = [], cycle(others)
    for method, address, send in senders(api_objects, api):
        for name, send_other in islice(turns, 2):
            answer = send_other(send)
            if answer.status_code not in (415, 404, 409):
                wrong.append((method, address, name, answer.status_code))

    # Rows of a dataset may also be a file of another type.
    assert [each for each in wrong if "datasets" not in each[1]] == []
    assert all(status in REFUSED for *_, status in wrong), wrong


def a_body_above_the_limit_is_refused_with_413(api: Any, api_objects: ApiObjects) -> None:
    wrong = []
    for method, address, send in senders(api_objects, api):
        announced = send(b"{}", CONTENT_LENGTH="2000000000")
        if announced.status_code not in (413, 404, 409):
            wrong.append((method, address, "announced", announced.status_code))
        if "datasets" in address or "agent-runs" in address or "uploads" in address:
            continue  # these have other limits and their own tests
        has_output = address.endswith(("/approve/", "/complete/"))
        limit = largest_body_with_output() if has_output else 256 * 1024
        large = send(b'{"a":"' + b"x" * limit + b'"}')
        if large.status_code not in (413, 404):
            wrong.append((method, address, "sent", large.status_code))

    assert wrong == []


def a_repeated_key_is_refused_by_every_operation(api: Any, api_objects: ApiObjects) -> None:
    """Otherwise one part of the program could use one value and another part the other."""
    not_refused = set()
    for method, address, send in senders(api_objects, api):
        answer = send(b'{"name": "a", "name": "b"}')
        assert answer.status_code < 500
        if "twice" not in answer.content.decode():
            not_refused.add((f"{method} {address}", answer.status_code))

    assert not_refused == set()


#: The beginnings of a framework's texts, which do not say what is expected at the path.
FOREIGN = (
    "This field",
    "This list",
    "Ensure this",
    "Expected a",
    "Enter a",
    "Not a valid",
    "A valid",
    "Select a valid",
)


def unexpected_values_cause_no_internal_error(api: Any, api_objects: ApiObjects) -> None:
    """Each operation gets a share of the values in all documented members; `test_api_fuzz` generates more."""
    documents = {(method, address): operation for method, address, operation in operations()}
    wrong = []
    for turn, (method, address, send) in enumerate(senders(api_objects, api)):
        content = documents[method, address].get("requestBody", {}).get("content", {})
        names = {name for name, _ in members_of(content.get(JSON, {}).get("schema", {}))}
        for value in ODD_VALUES[turn % SHARES_OF_VALUES :: SHARES_OF_VALUES]:
            answer = send(json.dumps(dict.fromkeys(sorted(names), value)).encode())
            is_foreign = any(words in answer.content.decode() for words in FOREIGN)
            if answer.status_code >= 500 or is_foreign:
                wrong.append((method, address, value, answer.content[:200]))

    assert wrong == []


#: Of all operations. The last two send some bodies that agents may send, which may end their run.
RULES = [
    a_repeated_key_is_refused_by_every_operation,
    a_body_above_the_limit_is_refused_with_413,
    bodies_of_other_content_types_and_encodings_are_refused,
    malformed_bodies_are_refused_by_every_operation,
    unexpected_values_cause_no_internal_error,
]


@pytest.mark.usefixtures("no_states_in_the_audit_trail")
@in_one_test("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_operation_keeps_the_rules_of_bodies(
    rule: Any, api: Any, api_objects: ApiObjects, engine: Engine
) -> None:
    if rule is RULES[-1]:
        _, api_objects.agent = accept_work(engine, api_objects.tenant)
        api_objects.parameters["agent-runs/"]["run_id"] = str(api_objects.agent.run_id)
    rule(api, api_objects)


# Templates and times

TEMPLATES = [
    "{{ 1337 * 1337 }}", "${1337*1337}", "#{1337*1337}", "<%= 1337*1337 %>",
    "{% include '/etc/passwd' %}", "{0.__class__.__mro__}", "%(name)s %s %n", "$(id) `id`",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{name!r:>{width}}",
]  # fmt: skip


def test_text_that_looks_like_a_template_is_not_evaluated(api: Any, acme: Tenant, engine: Engine) -> None:
    admin = api("admin")
    for text in TEMPLATES:
        body = {
            "name": text,
            "description": text,
            "agent_role": "qa",
            "params": {"a": text, text: [text]},
            "metadata": {"a": text},
        }
        created = admin.post("/api/v1/activities/", body)
        assert created.status_code == 201, created.content

        stored = admin.get(f"/api/v1/activities/{created.json()['id']}/").json()
        engine.drain()

        assert {name: stored[name] for name in ("name", "description", "params")} == {
            "name": text, "description": text, "params": {"a": text, text: [text]},
        }  # fmt: skip
        request = engine.agent.calls[-1]
        assert (request.name, request.params["a"]) == (text, text)
        assert text in request.prompt
        assert "1787569" not in request.prompt


CRON_BOMBS = [
    "0 0 30 2 *", "0 0 31 4 *", "0-999999999 * * * *", "*/0 * * * *", "*/99999999999999999999 * * * *", "1-5/0 * * * *", "60 * * * *",
    "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 9", "5-1 * * * *", "* * * *", "* * * * * * * *", "", "@every 1ns", "@reboot",
    "0 0 * * MON-", ",".join(["1"] * 5_000) + " * * * *", "* " * 5_000, "1," * 5_000 + "1 * * * *", "*" * 10_000, "(" * 10_000,
    "0 0 1 1 * " + " " * 10_000, "\u0661 * * * *", "0 0 L * *\x00", "a" * 10_000,
]  # fmt: skip


@in_one_test("operation", ["create", "preview"])
def test_invalid_impossible_and_huge_cron_expressions_are_refused(
    api: Any, acme: Tenant, operation: str
) -> None:
    admin = api("admin")
    place = "/api/v1/schedules/" if operation == "create" else "/api/v1/schedules/preview/"
    assert admin.post(place, schedule(cron="0 7 * * *")).status_code == (
        201 if operation == "create" else 200
    )
    for number, cron in enumerate(CRON_BOMBS):
        answer = admin.post(place, schedule(name=f"n{number}", cron=cron))

        refused = answer.status_code == 400 or (operation == "preview" and answer.json()["errors"])
        assert refused, (cron[:40], answer.content[:300])


@pytest.mark.parametrize("cron", CRON_BOMBS, ids=lambda cron: cron[:20])
def test_refusing_a_cron_expression_takes_almost_no_time(cron: str) -> None:
    """Measures the processor time of this thread, best of three, so that other load does not count."""
    spent = []
    for _ in range(3):
        before = time.thread_time()
        with pytest.raises(CronError):
            Cron.of(cron)
        spent.append(time.thread_time() - before)

    assert min(spent) < 0.05


MISSING: dict[str, tuple[dict[str, Any], str]] = {
    "activities/": ({"name": "x"}, "agent_role"),
    "agents/": ({"name": "x"}, "role"),
    "approvals/": ({"title": "x"}, "type"),
    "datasets/": ({"fields": {"id": "integer"}}, "name"),
    "deliverables/": ({"name": "x"}, "key"),
    "pipelines/": ({"key": "x", "name": "x", "steps": [{"agent_role": "qa"}]}, "steps[0].id"),
    "schedules/": ({"name": "x", "repeat": "once", "target_type": "agent", "agent_role": "qa"}, "start_at"),
    "templates/": ({"name": "x"}, "key"),
}


@in_one_test("address", MISSING)
def test_a_missing_member_is_named_by_its_own_path(api: Any, tenant: Tenant, address: str) -> None:
    body, path = MISSING[address]

    refused = api("admin", platform=True).post(f"/api/v1/{address}", body)

    assert refused.status_code == 400, refused.content
    assert path in [error["path"] for error in refused.json()["errors"]]


@pytest.mark.parametrize(
    ("method", "address", "body", "expected"),
    [
        (
            "post",
            "approvals/",
            {"title": "x" * 201, "activity_ids": "x"},
            {
                "type": "is required",
                "title": "must have at most 200 characters",
                "activity_ids": "must be a list",
            },
        ),
        (
            "post",
            "activities/",
            {"name": None, "agent_role": "qa", "max_attempts": 0, "timeout_seconds": 86_401},
            {
                "name": "must not be null",
                "max_attempts": "must be at least 1",
                "timeout_seconds": "must be at most 86400",
            },
        ),
        ("post", "inbox/decide/", {"items": []}, {"items": "must not be empty"}),
        ("post", "datasets/", {"rows": []}, {"name": "is required", "fields": "is required"}),
        (
            "put",
            "agent-configs/qa/",
            {"rate": {"capacity": "x"}},
            {"rate.per_second": "is required", "rate.capacity": "must be a number"},
        ),
        ("post", "webhooks/", {"url": "https://1.1.1.1/x", "kinds": "x"}, {"kinds": "must be a list"}),
        (
            "get",
            "pipeline-runs/?status=x&version=a&started_after=1",
            None,
            {
                "version": "must be a whole number",
                "status": "must be one of running, completed, failed, cancelled",
                "started_after": "must be a time such as 2026-05-01T09:30:00Z",
            },
        ),
        (
            "get",
            "schedules/?enabled=x&repeat=x",
            None,
            {
                "enabled": "must be one of true, false",
                "repeat": "must be one of once, repeating",
            },
        ),
        (
            "post",
            "activities/{activity}/reassign/",
            {"agent_role": "none-such", "reason": 5},
            {"agent_role": NO_SUCH_ROLE, "reason": "must be text"},
        ),
        (
            "post",
            "activities/bulk/",
            {"action": "reassign", "filter": {"agent_role": "qa", "priority": "high"}, "dry_run": True},
            {
                "filter.priority": "must be a whole number",
                "agent_role": "exactly one of agent_role and human_role must be given",
                "reason": "is needed to reassign",
            },
        ),
        (
            "post",
            "dead-letters/replay/",
            {"per_second": 0},
            {"ids": "exactly one of ids and filter must be given", "per_second": "must be at least 0.001"},
        ),
        (
            "post",
            "inbox/decide/",
            {"items": [{"id": "x", "decision": "reject"}]},
            {
                "items[0].id": "must be a UUID",
                "items[0].notes": "is required to reject: the agent works by it",
            },
        ),
        (
            "put",
            "agent-configs/qa/",
            {
                "auth": {"type": "bearer", "set": 1},
                "retry": {"jitter": 2, "base_seconds": 2, "max_seconds": 1},
            },
            {
                "auth.set": "must be true or false",
                "auth.token": "is required",
                "retry.jitter": "must be at most 1",
                "retry.max_seconds": "must not be below base_seconds",
            },
        ),
        (
            "post",
            "templates/",
            {"key": "t", "agent_role": "none-such"},
            {"name": "is required", "agent_role": NO_SUCH_ROLE},
        ),
        (
            "get",
            "activities/?ids=x&schedule=x",
            None,
            {"ids": "must be a UUID", "schedule": "must be a UUID"},
        ),
        (
            "get",
            "batch-items/?state=x",
            None,
            {
                "state": "must be one of collected, bound, answered, failed, moved, dropped",
            },
        ),
    ],
)
def test_each_fault_says_what_is_expected(
    api: Any, tenant: Tenant, engine: Engine, method: str, address: str, body: Any, expected: dict[str, str]
) -> None:
    engine.serve(tenant)
    (activity,) = engine.submit(tenant) if "{activity}" in address else (None,)
    address = address.replace("{activity}", str(activity))

    answer = getattr(api(), method)(f"/api/v1/{address}", *([] if body is None else [body]))

    faults = problem(answer, 400, "validation_failed")["errors"]
    assert {fault["path"]: fault["message"] for fault in faults} == expected
