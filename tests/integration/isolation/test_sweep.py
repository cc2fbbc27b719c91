"""Sends every operation of the API as one tenant with ids of another: no response shows or reveals the other's data, and none changes it.

The operations, ids, filters and bodies come from the OpenAPI schema, so new ones are tested as well. Everything runs three times:
with both layers of isolation; with row-level security alone, without the filters of queries; and with these filters alone, under a
role that bypasses row-level security.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connections

from tenants import tokens
from tenants.api import auditing
from tenants.context import APP
from tenants.models import Role, TenantQuerySet
from tests.cases import Check, in_one_test
from tests.integration.isolation import addresses, sending, world
from tests.integration.isolation.addresses import NOWHERE_WORD, Things
from tests.integration.isolation.conftest import Other, ids_of
from tests.integration.isolation.sending import INSIDES, Answer
from tests.integration.isolation.surface import RECORDS_OF_REQUESTS, Operation, operations, put
from tests.integration.isolation.world import API, NOBODY, World

pytestmark = pytest.mark.long

BOTH, ROWS, QUERIES = "both layers", "row security alone", "queries alone"
EMPTY_CODES = {"no_transcript", "no_output", "no_input"}
NOWHERE = "00000000-0000-7000-8000-00000000dead"
#: By operation, its responses to unknown values, which are the same with each layer, and are requested again where they are not.
RESPONSES_TO_UNKNOWN: dict[str, dict[str, Answer]] = defaultdict(dict)


def each(condition: Callable[[Operation], Any] = lambda operation: True) -> Callable[[Check], Check]:
    """Run a test for each operation that meets the condition, and name those that fail."""
    selected = [operation for operation in operations() if condition(operation)]
    return in_one_test("operation", selected, ids=lambda operation: operation.name)


@pytest.fixture(scope="module", params=[BOTH, ROWS, QUERIES])
def layers(request: pytest.FixtureRequest, other: Other) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch, connections[APP].cursor() as cursor:
        if request.param == ROWS:
            patch.setattr(TenantQuerySet, "for_tenant", lambda rows, tenant: rows.all())
        if request.param == QUERIES:
            cursor.execute("SET ROLE orchestrator_system")
        if request.param != BOTH:
            # What the audit trail would read before a change is what the address answers, which is requested as well.
            patch.setattr(auditing, "_state_of", lambda view: None)
        # A token is looked up before any id is read, so once suffices.
        patch.setattr(tokens._known, "_seconds", 3600.0)
        yield request.param
        cursor.execute("RESET ROLE")
        tokens._known.clear()


@pytest.fixture(autouse=True)
def nothing_changed(layers: str, other: Other) -> Iterator[None]:
    """Compare the other tenant's data after each test, because after each operation it would take a third of the time."""
    yield
    assert other.changed() == set(), layers


@pytest.fixture(scope="module")
def mine(layers: str) -> World:
    """The tenant that sends the requests. It is new for each run, because requests change its data."""
    return world.build(f"alderco-{layers.partition(' ')[0]}", "alderco-word", "quartz-a-91c2")


@pytest.fixture(scope="module")
def things(mine: World) -> Things:
    return ids_of(mine)


def callers(operation: Operation, mine: World, *others: str) -> dict[str, Any]:
    """Return the clients with these roles, and before them the one with the most permissions."""
    by_role = {role: mine.clients[role] for role in (Role.ADMIN, *others)}
    return {"the agent of a run": mine.agent, **by_role} if operation.of_runs else by_role


def caller_with_most(operation: Operation, mine: World) -> Any:
    return mine.agent if operation.of_runs else mine.admin


def assert_reveals_nothing(answer: Answer, theirs: World, request: Any) -> None:
    """Assert that the response contains no data of the other tenant and no internals."""
    assert theirs.canary not in answer.whole, f"the response to {request} contains data of another tenant"
    assert str(theirs.tenant.pk) not in answer.whole, request
    assert answer.status < 500, (request, answer.body)
    if answer.status >= 400:
        assert not INSIDES.search(answer.whole), (request, answer.body)


def compare(
    ask: Any, theirs: World, foreign: Any, nowhere: Any, layers: str, known: dict[str, Answer] | None = None
) -> Answer:
    """Send the request with a foreign and with an unknown value, and assert that the responses are equal. Because the first request
    may change the response to the second, a difference counts only if it is there in the other order as well. `known` keeps
    responses for unknown values, which are requested once.
    """
    words = (theirs.word, NOWHERE_WORD)
    if layers == BOTH:
        ask = without_caches(ask)
    known = {} if known is None else known
    absent = known.get(repr(nowhere)) or known.setdefault(repr(nowhere), ask(nowhere))
    answer = ask(foreign)
    assert_reveals_nothing(answer, theirs, foreign)
    if answer.normalized(*words) != absent.normalized(*words) or (
        layers == BOTH and answer.statements != absent.statements
    ):
        again = ask(nowhere)
        answer = answer if answer.normalized(*words) == again.normalized(*words) else ask(foreign)
        assert answer.normalized(*words) == again.normalized(*words), (foreign, nowhere)
        if layers == BOTH and answer.statements != again.statements:
            counts = [(ask(nowhere).statements, ask(foreign).statements) for _ in range(3)]
            absent_takes, foreign_takes = (set(each) for each in zip(*counts, strict=True))
            assert absent_takes & foreign_takes, (foreign, "statements", counts)
    return answer


def without_caches(ask: Any) -> Any:
    """Clear the caches before each request, so that the numbers of statements can be compared."""

    def ask_without_caches(request: Any) -> Answer:
        sending.clear_caches()
        answer: Answer = ask(request)
        return answer

    return ask_without_caches


@each(lambda each: each.parameters)
def test_ids_of_another_tenant_in_the_address_are_not_found(
    layers: str, operation: Operation, mine: World, things: Things, other: Other
) -> None:
    """With one layer alone the status shows that the object was not found. Only changes have other permissions than the admin's."""
    theirs = other.world
    body = operation.body(mine.word)
    others = [Role.VIEWER] if layers == BOTH and operation.method != "get" else []

    for role, client in callers(operation, mine, *others).items():
        for foreign, nowhere in addresses.foreign_addresses(operation, things, other.things):

            def ask(address: str, client: Any = client) -> Answer:
                return sending.ask(client, operation.method, address, body)

            if layers == BOTH or operation.creates_by_name:
                answer = compare(ask, theirs, foreign, nowhere, layers)
            else:
                answer = ask(foreign)
                assert_reveals_nothing(answer, theirs, foreign)
            created = operation.creates_by_name and answer.status in {200, 201}
            allowed = {404, 401 if operation.of_runs else 403}
            assert created or answer.status in allowed, (role, foreign, answer.status, answer.body)


@each(lambda each: each.method == "get")
def test_filters_find_nothing_of_another_tenant(
    layers: str, operation: Operation, mine: World, things: Things, other: Other
) -> None:
    theirs = other.world
    address = addresses.own(operation, things)
    client = caller_with_most(operation, mine)

    def ask(query: str) -> Answer:
        return sending.ask(client, operation.method, f"{address}?{query}")

    plain = ask("")
    assert_reveals_nothing(plain, theirs, address)
    # Otherwise the refusals below would prove nothing.
    assert plain.status == 200 or any(code in plain.body for code in EMPTY_CODES), (address, plain.body)
    known = RESPONSES_TO_UNKNOWN[operation.name]
    for name, kind in operation.queries:
        ids = addresses.candidates(other.things, name) if kind == "uuid" else []
        for foreign in ids:
            compare(ask, theirs, f"{name}={foreign}", f"{name}={NOWHERE}", layers, known)
        if (operation.address, name) in RECORDS_OF_REQUESTS:
            assert_reveals_nothing(ask(f"{name}={theirs.word}"), theirs, (address, name))
        elif kind in {"string", "array"}:
            compare(ask, theirs, f"{name}={theirs.word}", f"{name}={NOWHERE_WORD}", layers, known)
    if layers == BOTH:  # because it is refused before any query, independently of the layers
        assert_reveals_nothing(ask("ordering=-tenant__apitoken__secret_hash"), theirs, address)


@each(lambda each: each.content is not None)
def test_ids_of_another_tenant_in_a_body_have_no_effect(
    layers: str, operation: Operation, mine: World, things: Things, other: Other
) -> None:
    theirs = other.world
    address, least = addresses.own(operation, things), operation.body(NOWHERE_WORD)
    client = caller_with_most(operation, mine)

    def ask(body: Any) -> Answer:
        return sending.ask(client, operation.method, address, body)

    known = RESPONSES_TO_UNKNOWN[operation.name]
    for path, kind in operation.places():
        if operation.of_runs and kind == "word":
            continue  # because the report of an agent may end its run before the second request
        names = addresses.candidates(other.things, path) if kind == "uuid" else [theirs.word]
        for foreign in names:
            nowhere = NOWHERE if kind == "uuid" else NOWHERE_WORD
            compare(ask, theirs, put(least, path, foreign), put(least, path, nowhere), layers, known)
    if isinstance(least, dict) and layers == BOTH:  # because a wrong tenant would mislead each layer
        body = {**least, "tenant": str(theirs.tenant.pk), "tenantId": str(theirs.tenant.pk)}
        answer = ask(body)
        assert theirs.canary not in answer.whole


def test_the_version_of_an_item_of_another_tenant_has_no_effect(
    layers: str, mine: World, things: Things, other: Other
) -> None:
    def ask(item_id: str) -> Answer:
        item = {"id": item_id, "decision": "approved", "version": 1_000_000}
        return sending.ask(mine.admin, "post", f"{API}inbox/decide/", {"items": [item]})

    for foreign in addresses.candidates(other.things, ("activities",)):
        assert "not_found" in compare(ask, other.world, foreign, NOWHERE, layers).body


@each()
def test_responses_without_foreign_ids_show_nothing_of_another_tenant(
    layers: str, operation: Operation, mine: World, things: Things, other: Other
) -> None:
    """Except with the most permissions: the test of filters begins with reading, and the test of bodies sends all names."""
    theirs = other.world
    address, body = addresses.own(operation, things), operation.body(mine.word)
    sends_names = not operation.of_runs and "word" in {kind for _, kind in operation.places()}
    most = caller_with_most(operation, mine) if operation.method == "get" or sends_names else None

    for role, client in callers(operation, mine, *([Role.VIEWER, NOBODY] if layers == BOTH else [])).items():
        if client is most:
            continue
        answer = sending.ask(client, operation.method, address, body)
        assert_reveals_nothing(answer, theirs, (role, address))
