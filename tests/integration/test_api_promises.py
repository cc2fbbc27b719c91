"""Promises of the whole API, checked for every operation of the OpenAPI schema."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from itertools import cycle
from threading import Event
from typing import Any

import pytest

from tenants.api import idempotency
from tenants.context import tenant_scope
from tenants.models import ApiToken
from tests.answers import problem
from tests.api_objects import ApiObjects
from tests.cases import in_one_test
from tests.engine import simultaneously
from tests.fuzzing.bodies import BODIES, CHANGES_NOTHING_READ, SUCCEEDS_ONLY_IN_A_STATE
from tests.integration.test_api_openapi import CALLBACKS, operations

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("database", "no_states_in_the_audit_trail")]

Operation = tuple[str, str, dict[str, Any]]


def operations_with(*methods: str) -> Iterator[Operation]:
    """Yield operations with these methods for people and programs; those for agents have other rules."""
    for method, address, operation in operations():
        if method in methods and not address.startswith(CALLBACKS):
            yield method, address, operation


def is_list(operation: dict[str, Any]) -> bool:
    return bool(operation["operationId"].endswith("_list"))


@pytest.fixture
def client(api: Any) -> Any:
    return api("admin", platform=True)


def every_object_has_an_etag_and_is_not_sent_again_to_clients_that_have_it(
    api_objects: ApiObjects, client: Any
) -> None:
    count = 0
    for _, address, operation in operations_with("get"):
        if is_list(operation) or operation["operationId"] in {
            "events_retrieve",
            "activities_runs_log_retrieve",
        }:
            continue  # events and the log of a run are paged or endless
        location = api_objects.address(address)
        answer = client.get(location)
        if answer.status_code == 404 and ("transcript" in address or "input" in address):
            continue  # one of an agent on the command line, and one that needs only its body
        assert answer.status_code == 200, (location, answer.content)
        assert re.fullmatch(r'"[^"]+"', answer.headers.get("ETag", "")), address
        again = client.get(location, headers={"If-None-Match": f'"other", W/{answer["ETag"]}'})
        assert (again.status_code, again.content) == (304, b""), address
        assert again["ETag"] == answer["ETag"]
        assert client.get(location, headers={"If-None-Match": '"other"'}).status_code == 200
        count += 1
    assert count >= 25


def a_member_that_cannot_be_changed_is_refused_with_another_value(
    api_objects: ApiObjects, client: Any
) -> None:
    for address in ("/api/v1/skills/{key}/", "/api/v1/deliverables/{id}/"):
        location = api_objects.address(address)
        body = client.get(location).json()

        errors = problem(client.put(location, body | {"key": "other"}), 400, "validation_failed")["errors"]

        message = "cannot be changed here: omit it, or send its present value"
        assert errors == [{"path": "key", "message": message}]


def test_a_changed_or_created_object_is_not_sent_again_to_the_client_that_changed_it(
    api_objects: ApiObjects, client: Any
) -> None:
    readable = {address for _, address, operation in operations_with("get") if not is_list(operation)}
    checked = set()
    for method, address, operation in operations_with("put", "patch", "post"):
        name = operation["operationId"]
        answer = getattr(client, method)(api_objects.address(address), BODIES.get(name, {}))
        changed = address if method != "post" else f"{address.rstrip('/').rpartition('/')[0]}/"
        location = answer.headers.get("Location") or (changed in readable and api_objects.address(changed))
        if answer.status_code >= 300 or not location:
            continue
        read = client.get(location)
        if read.status_code != 200 or answer.json().keys() != read.json().keys():
            continue  # the answer is not the object, or contains a secret, which is displayed once
        again = client.get(location, headers={"If-None-Match": answer["ETag"]})
        assert again.status_code == 304, (name, answer["ETag"], read["ETag"])
        checked.add(name)
    assert {
        "activities_create",
        "budgets_update",
        "schedules_partial_update",
        "pipelines_runs_create",
    } <= checked
    assert len(checked) >= 35


def every_change_respects_if_match_or_refuses_it(api_objects: ApiObjects, client: Any) -> None:
    for method, address, operation in operations_with("put", "patch", "delete", "post"):
        declared = {parameter["name"] for parameter in operation.get("parameters", ())}
        if "{" in address and operation["operationId"] not in CHANGES_NOTHING_READ:
            assert "If-Match" in declared, operation["operationId"]
            assert "412" in operation["responses"], operation["operationId"]
        elif "If-Match" in declared:
            continue  # of a thing that there is once, such as the retention
        body = BODIES.get(operation["operationId"], {})
        answer = getattr(client, method)(
            api_objects.address(address), body, headers={"If-Match": '"of-another-time"'}
        )
        assert answer.status_code == 412, (operation["operationId"], answer.status_code, answer.content)
        problem(answer, 412, "precondition_failed")


def every_address_says_which_methods_it_has(api_objects: ApiObjects, client: Any) -> None:
    methods: dict[str, set[str]] = {}
    for method, address, _ in operations_with("get", "post", "put", "patch", "delete"):
        methods.setdefault(address, set()).add(method.upper())
    for address, documented in methods.items():
        answer = client.options(api_objects.address(address))
        assert (answer.status_code, answer.content) == (204, b""), (address, answer.content)
        assert set(answer["Allow"].split(", ")) - {"HEAD", "OPTIONS"} == documented, address


def every_post_refuses_an_invalid_idempotency_key(api_objects: ApiObjects, client: Any) -> None:
    for _, address, operation in operations_with("post"):
        body = BODIES.get(operation["operationId"], {})
        answer = client.post(api_objects.address(address), body, headers={"Idempotency-Key": "two words"})
        assert answer.status_code == 400, (address, answer.content)
        problem(answer, 400, "invalid_idempotency_key")


def test_every_post_can_be_repeated_and_its_key_is_bound_to_its_body(
    api_objects: ApiObjects, client: Any
) -> None:
    count = 0
    for _, address, operation in operations_with("post"):
        name, location = operation["operationId"], api_objects.address(address)
        body = BODIES.get(name, {})
        key = {"Idempotency-Key": name}
        first = client.post(location, body, headers=key)
        if name in SUCCEEDS_ONLY_IN_A_STATE and first.status_code >= 400:
            continue
        assert first.status_code < 300, (name, first.content)
        again = client.post(location, body, headers=key)
        assert again.status_code == first.status_code, name
        assert again["Idempotency-Replayed"] == "true", name
        assert again.content == first.content or "secret" in again.json(), name
        text = next((member for member in ("name", "description") if member in body), "note")
        other = {**body, text: f"{body.get(text)}-2"}
        refused = client.post(location, other, headers=key)
        assert refused.status_code == 422, (name, refused.content)
        problem(refused, 422, "idempotency_key_reused")
        count += 1
    assert count > 30


def no_post_that_is_in_progress_is_started_a_second_time(api_objects: ApiObjects, client: Any) -> None:
    tenant = api_objects.tenant
    with tenant_scope(tenant.pk):
        token = ApiToken.objects.order_by("-created_at").first()
    assert token is not None
    places = {
        api_objects.address(address): operation["operationId"]
        for _, address, operation in operations_with("post")
    }
    held, requested = Event(), Event()

    def hold() -> None:
        with tenant_scope(tenant.pk):
            for location in places:
                digest = hashlib.sha256(f"token:{token.pk}\n{location}\nk".encode()).hexdigest()
                idempotency._refuse_concurrent(tenant.pk, digest)
            held.set()
            requested.wait(60)

    def send_all() -> list[tuple[str, int, str]]:
        try:
            assert held.wait(60)
            answers = {
                location: client.post(location, BODIES.get(name, {}), headers={"Idempotency-Key": "k"})
                for location, name in places.items()
            }
            return [
                (location, answer.status_code, answer.json()["code"]) for location, answer in answers.items()
            ]
        finally:
            requested.set()

    _, results = simultaneously(hold, send_all)

    assert not isinstance(results, Exception), results
    assert {each[1:] for each in results} == {(409, "idempotency_in_progress")}, results


#: Changes in another form than what is read: the dates of an activity, the definition of a pipeline, an object of retention periods.
SENT_OTHERWISE = {"activities_partial_update", "pipelines_update", "retention_update"}


def every_object_that_was_read_can_be_sent_back_unchanged(api_objects: ApiObjects, client: Any) -> None:
    count = 0
    for method, address, operation in operations_with("put", "patch"):
        name, location = operation["operationId"], api_objects.address(address)
        if name in SENT_OTHERWISE:
            continue
        before = client.get(location).json()

        answer = getattr(client, method)(location, before)

        assert answer.status_code == 200, (name, answer.content)
        after = client.get(location).json()
        changed = {member for member, value in after.items() if value != before[member]}
        assert changed <= {"version", "revision", "updated_at", "updated_by"}, name
        count += 1
    assert count > 12


def the_dates_and_the_definition_that_were_read_can_be_sent_back(
    api_objects: ApiObjects, client: Any
) -> None:
    waits = client.post("/api/v1/activities/", {"name": "x", "human_role": "editor"}).json()
    dates = {name: waits[name] for name in ("priority", "not_before", "due_at", "expires_at")}
    pipeline = client.get(location := api_objects.address("/api/v1/pipelines/{key}/")).json()

    assert client.patch(waits["link"], dates).json()["version"] == waits["version"]
    assert client.put(location, pipeline["definition"]).json()["definition"] == pipeline["definition"]


WRONG_QUERIES = (
    ("cursor=nonsense", "cursor"), ("limit=0", "limit"), ("ordering=no_such_field", "ordering"),
    ("limit=x", "limit"), ("limit=1&limit=2", "limit"), ("tenant=x", "tenant"), ("limit=-1", "limit"),
)  # fmt: skip


def every_list_refuses_invalid_parameters(api_objects: ApiObjects, client: Any) -> None:
    count = 0
    for _, address, operation in operations_with("get"):
        if not is_list(operation):
            continue
        location = api_objects.address(address)
        # The parameters of all lists are read in one place, so each list gets a third of these queries.
        for requested, path in (("no_such_filter=1", "no_such_filter"), *WRONG_QUERIES[count % 3 :: 3]):
            answer = client.get(f"{location}?{requested}")
            assert answer.status_code == 400, (address, requested)
            errors = problem(answer, 400, "validation_failed")["errors"]
            assert [error["path"] for error in errors] == [path], (address, requested, errors)
        page = client.get(f"{location}?limit=100000")
        assert page.status_code == 200, (address, page.content)
        assert len(page.json()["results"]) <= 200
        count += 1
    assert count > 25


def every_ordering_that_a_list_offers_pages_through_all_rows_once(
    api_objects: ApiObjects, client: Any
) -> None:
    for _, address, operation in operations_with("get"):
        orderings = [p for p in operation.get("parameters", ()) if p["name"] == "ordering"]
        if not is_list(operation) or not orderings:
            continue
        location = api_objects.address(address)
        names = re.search(r"One or more of ([\w, ]+), sep", orderings[0]["description"])
        assert names, address
        total = len(client.get(location).json()["results"])
        size = max(1, total // 4)
        for name, sign in zip(names[1].split(", "), cycle(("", "-"))):
            rows, following = [], f"{location}?ordering={sign}{name}&limit={size}"
            while following and len(rows) <= total:
                page = client.get(following).json()
                rows += [str(row) for row in page["results"]]
                following = page["next"]
            assert len(rows) == total, (address, sign, name)


def numbered(name: str, number: int) -> dict[str, Any]:
    """Return a body that creates another object of this kind."""
    body = dict(BODIES[name])
    for member in ("name", "key", "title"):
        if member in body:
            body[member] = f"{body[member]}-{number}"
    return {**body, "name": f"n{number}"} if name == "budgets_create" else body


GROWING = (
    "activities", "approvals", "budgets", "channels", "datasets", "deliverables", "notification-channels", "pipelines", "schedules",
    "skills", "subagents", "templates", "webhooks",
)  # fmt: skip


def rows_that_are_added_between_two_pages_shift_nothing(api_objects: ApiObjects, client: Any) -> None:
    shifted = {kind: error for kind in GROWING if (error := _shifted(client, kind))}

    assert shifted == {}


def _shifted(client: Any, kind: str) -> str:
    """Return what was wrong with the pages of a list that grew while it was read."""
    name, location = f"{kind.replace('-', '_')}_create", f"/api/v1/{kind}/"

    def make(number: int) -> None:
        answer = client.post(location, numbered(name, number))
        assert answer.status_code == 201, (kind, answer.content)

    def marks(page: dict[str, Any]) -> list[str]:
        return [
            str(row.get("id") or row.get("subagent_id") or row.get("key") or row["name"])
            for row in page["results"]
        ]

    for number in range(3):
        make(number)
    before = marks(client.get(location).json())
    page = client.get(f"{location}?limit=1").json()
    read_so_far = marks(page)
    number = 3
    while page["next"]:
        if number < 7:  # because a list with new rows at its end would never end
            make(number)
            number += 1
        page = client.get(page["next"]).json()
        read_so_far += marks(page)

    if len(read_so_far) != len(set(read_so_far)):
        return f"twice: {sorted(each for each in set(read_so_far) if read_so_far.count(each) > 1)}"
    missing = set(before) - set(read_so_far)
    return f"never: {sorted(missing)}" if missing else ""


#: Those that can share the objects: they change nothing, except the last three, which create more and write what they have read.
PROMISES = [
    every_address_says_which_methods_it_has,
    every_object_has_an_etag_and_is_not_sent_again_to_clients_that_have_it,
    every_ordering_that_a_list_offers_pages_through_all_rows_once,
    every_list_refuses_invalid_parameters,
    a_member_that_cannot_be_changed_is_refused_with_another_value,
    every_change_respects_if_match_or_refuses_it,
    every_post_refuses_an_invalid_idempotency_key,
    no_post_that_is_in_progress_is_started_a_second_time,
    every_object_that_was_read_can_be_sent_back_unchanged,
    the_dates_and_the_definition_that_were_read_can_be_sent_back,
    rows_that_are_added_between_two_pages_shift_nothing,
]


@in_one_test("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_promises_that_can_be_checked_with_the_same_objects_are_kept(
    promise: Any, api_objects: ApiObjects, client: Any
) -> None:
    promise(api_objects, client)
