"""Requests that every operation of the API refuses: tokens in addresses, missing scopes, and operators instead of values."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connections
from rest_framework.test import APIClient

from tenants import tokens
from tenants.context import SYSTEM
from tests.cases import in_one_test
from tests.integration.isolation import addresses, sending, world
from tests.integration.isolation.addresses import Things
from tests.integration.isolation.conftest import ids_of
from tests.integration.isolation.sending import INSIDES, Answer
from tests.integration.isolation.surface import (
    CREATE_BY_NAME,
    RECORDS_OF_REQUESTS,
    Operation,
    operations,
    put,
)
from tests.integration.isolation.world import World

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("no_states_in_the_audit_trail")]

OPERATOR = {"$gt": ""}
OPERATOR_TEXT = json.dumps(OPERATOR)
#: These create the object that their address names.
CREATING = {("put", "/api/v1/pipelines/{key}/"), ("post", "/api/v1/mailboxes/{key}/items/")}
IGNORED = {("GET providers/", "limit")}  # because they always fit into one page


for_every_operation = in_one_test("operation", operations(), ids=lambda operation: operation.name)


@pytest.fixture(scope="module")
def mine(empty: None) -> World:
    return world.build("alderco", "alderco-word", "quartz-a-91c2")


@pytest.fixture(scope="module")
def things(mine: World) -> Things:
    return ids_of(mine)


def client_with_scopes(mine: World, *scopes: str) -> APIClient:
    _, secret = tokens.create(mine.tenant, "admin", "scoped", scopes=scopes)
    return client_with_token(secret)


def client_with_token(secret: str) -> APIClient:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return client


@pytest.fixture(scope="module")
def scoped(mine: World) -> dict[str, APIClient]:
    return {
        "read": client_with_scopes(mine, "read"),
        "elsewhere": client_with_scopes(mine, "mailboxes:write:elsewhere"),
    }


def harmless(answer: Answer, request: Any) -> Answer:
    assert answer.status < 500, (request, answer.body)
    assert answer.status < 400 or not INSIDES.search(answer.whole), (request, answer.body)
    return answer


def names_object_of_tenant(operation: Operation) -> bool:
    """Whether the address must name an object of the caller's tenant. Roles and providers belong to the platform."""
    return (
        not set(operation.parameters) <= addresses.SHARED.keys()
        and not operation.of_runs
        and not operation.address.startswith(("/api/v1/agents/", "/api/v1/providers/"))
        and (operation.method, operation.address) not in CREATING
    )


CHANGES_OF_OBJECTS = [
    each for each in operations() if each.content is not None and names_object_of_tenant(each)
]


@in_one_test("operation", CHANGES_OF_OBJECTS, ids=lambda operation: operation.name)
def test_an_invalid_body_for_an_object_that_does_not_exist_is_answered_404(
    operation: Operation, mine: World
) -> None:
    answer = sending.ask(mine.admin, operation.method, addresses.nowhere(operation), {"unknown": 1})

    assert answer.status == 404, answer.body


@for_every_operation
def test_a_token_in_the_address_is_refused(operation: Operation, mine: World, things: Things) -> None:
    client = mine.agent if operation.of_runs else mine.admin
    secret = f"orc_{'a' * 43}"

    query = f"{'token' if operation.method == 'get' else 'x'}={secret}"
    answer = sending.ask(client, operation.method, f"{addresses.own(operation, things)}?{query}")
    assert harmless(answer, query).status == 400
    assert '"token_in_query"' in answer.body
    assert secret not in answer.whole


@for_every_operation
def test_a_token_can_do_no_more_than_its_scopes_allow(
    operation: Operation, mine: World, things: Things, scoped: dict[str, APIClient]
) -> None:
    address, body = addresses.own(operation, things), operation.body(mine.word)
    refused = 401 if operation.of_runs else 403

    assert sending.ask(scoped["elsewhere"], operation.method, address, body).status == refused
    response = sending.ask(scoped["read"], operation.method, address, body)
    assert (response.status == refused) == (operation.of_runs or operation.method != "get"), response.body


@for_every_operation
def test_an_operator_instead_of_an_id_or_a_filter_is_refused(
    operation: Operation, mine: World, things: Things
) -> None:
    client = mine.agent if operation.of_runs else mine.admin
    address, body = addresses.own(operation, things), operation.body(mine.word)

    place = operation.address
    for parameter in operation.parameters:
        place = place.replace(f"{{{parameter}}}", quote(OPERATOR_TEXT, safe=""))
    if operation.parameters and operation.address not in CREATE_BY_NAME:
        answer = harmless(sending.ask(client, operation.method, place, body), place)
        assert answer.status in {400, 401, 403, 404}, (place, answer.body)
    if operation.method != "get":
        return
    for name, kind in operation.queries:
        address_with_filter = f"{address}?{name}={quote(OPERATOR_TEXT)}"
        answer = harmless(sending.ask(client, "get", address_with_filter), address_with_filter)
        if kind != "string" and (operation.name, name) not in IGNORED:
            assert answer.status == 400, (address_with_filter, answer.body)
        elif (operation.address, name) not in RECORDS_OF_REQUESTS:
            as_text = sending.ask(client, "get", f"{address}?{name}={addresses.NOWHERE_WORD}")
            assert (
                answer.normalized(quote(OPERATOR_TEXT)) == as_text.normalized(addresses.NOWHERE_WORD)
                or answer.status == 400
            ), address_with_filter
    for name, _ in operation.queries[:1]:
        nested = harmless(sending.ask(client, "get", f"{address}?{name}[$gt]="), name)
        assert nested.status == 400 or "limit" not in dict(operation.queries), (name, nested.body)


@for_every_operation
def test_an_operator_instead_of_a_value_in_a_body_is_refused(
    operation: Operation, mine: World, things: Things
) -> None:
    if operation.content is None:
        return
    client = mine.agent if operation.of_runs else mine.admin
    address, least = addresses.own(operation, things), operation.body(mine.word)

    for path, _ in operation.places():
        answer = harmless(sending.ask(client, operation.method, address, put(least, path, OPERATOR)), path)
        assert 400 <= answer.status < 500, (path, answer.status, answer.body)


def test_no_value_in_the_table_of_tokens_works_as_a_token(mine: World) -> None:
    with connections[SYSTEM].cursor() as cursor:
        cursor.execute("SELECT to_jsonb(t) FROM tenants_apitoken t")
        dump = [json.loads(row) if isinstance(row, str) else row for (row,) in cursor.fetchall()]
    values = {str(value) for row in dump for value in row.values()}
    values |= {f"orc_{value}" for value in values} | {row["prefix"] + row["secret_hash"] for row in dump}

    assert len(dump) >= 4
    for value in values:
        client = client_with_token(value.encode().decode("latin-1", "replace"))
        assert sending.ask(client, "get", "/api/v1/activities/").status == 401, value


def test_a_token_is_cached_for_less_than_two_seconds() -> None:
    assert tokens._known._seconds < 2
