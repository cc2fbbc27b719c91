"""Every operation of the API, tried by one tenant on what belongs to another: nothing is shown, changed, or told to exist.

The operations, their ids, filters and bodies come from the OpenAPI schema, so those of tomorrow are tried as well. All is done
three times: as it runs; with the filter of queries switched off, so that row-level security stands alone; and under a role that
bypasses row-level security, so that the filter does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest
from django.db import connections

from tenants.context import APP
from tenants.models import Role, TenantQuerySet
from tests.cases import Check, in_one_test
from tests.integration.isolation import addresses, sending, world
from tests.integration.isolation.addresses import NOWHERE_WORD, Things
from tests.integration.isolation.conftest import Other
from tests.integration.isolation.conftest import found as found_of
from tests.integration.isolation.sending import INSIDES, Answer
from tests.integration.isolation.surface import TELLS_OF_TRIES, Operation, operations, put
from tests.integration.isolation.world import NOBODY, World

pytestmark = pytest.mark.long

BOTH, ROWS, QUERIES = "both layers", "row security alone", "queries alone"
NOTHING_YET = {"no_transcript", "no_output", "no_input"}
NOWHERE = "00000000-0000-7000-8000-00000000dead"


def each(condition: Callable[[Operation], Any] = lambda operation: True) -> Callable[[Check], Check]:
    """The operations for which it holds, one after the other in one test, each named that fails. After each the other tenant has what
    it had; with one layer alone that is looked at when all are over.
    """
    chosen = [operation for operation in operations() if condition(operation)]

    def made(check: Check) -> Check:
        @wraps(check)
        def tried(operation: Operation, layers: str, other: Other, **rest: Any) -> None:
            check(operation=operation, layers=layers, other=other, **rest)
            if operation.method != "get" and layers == BOTH:
                assert other.changed() == set()

        return in_one_test("operation", chosen, ids=lambda operation: operation.name)(tried)

    return made


@pytest.fixture(scope="module", params=[BOTH, ROWS, QUERIES])
def layers(request: pytest.FixtureRequest, other: Other) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch, connections[APP].cursor() as cursor:
        if request.param == ROWS:
            patch.setattr(TenantQuerySet, "for_tenant", lambda rows, tenant: rows.all())
        if request.param == QUERIES:
            cursor.execute("SET ROLE orchestrator_system")
        yield request.param
        cursor.execute("RESET ROLE")
    assert other.changed() == set(), request.param


@pytest.fixture(scope="module")
def mine(layers: str) -> World:
    """Who asks. A new one each time, as asking changes what it has."""
    return world.build(f"alderco-{layers.partition(' ')[0]}", "alderco-word", "quartz-a-91c2")


@pytest.fixture(scope="module")
def things(mine: World) -> Things:
    return found_of(mine)


def callers(operation: Operation, mine: World, layers: str) -> dict[str, Any]:
    """Who may do the most, who may do the least, and who may do nothing."""
    roles = [Role.ADMIN, Role.VIEWER, NOBODY] if layers == BOTH else [Role.ADMIN]
    found = {role: mine.clients[role] for role in roles}
    return {"the agent of a run": mine.agent, **found} if operation.of_runs else found


def silent(answer: Answer, theirs: World, asked: Any) -> None:
    """The answer shows nothing of theirs, and nothing of our insides."""
    assert theirs.canary not in answer.whole, f"{asked} is answered with what belongs to another tenant"
    assert str(theirs.tenant.pk) not in answer.whole, asked
    assert answer.status < 500, (asked, answer.body)
    if answer.status >= 400:
        assert not INSIDES.search(answer.whole), (asked, answer.body)


def same(
    ask: Any, theirs: World, foreign: Any, nowhere: Any, layers: str, asked: dict[str, Answer] | None = None
) -> Answer:
    """Ask for both; anyone who asks cannot tell them apart. What the first request changed may be what the second tells of,
    so a difference counts if it is there the other way round as well. `asked`: what is nowhere is asked for once for all that
    are compared with it.
    """
    told = (theirs.word, NOWHERE_WORD)
    if layers == BOTH:
        ask = afresh(ask)
    asked = {} if asked is None else asked
    absent = asked.get(repr(nowhere)) or asked.setdefault(repr(nowhere), ask(nowhere))
    found = ask(foreign)
    silent(found, theirs, foreign)
    if found.seen(*told) != absent.seen(*told) or (layers == BOTH and found.statements != absent.statements):
        again = ask(nowhere)
        found = found if found.seen(*told) == again.seen(*told) else ask(foreign)
        assert found.seen(*told) == again.seen(*told), (foreign, nowhere)
        if layers == BOTH and found.statements != again.statements:
            counts = [(ask(nowhere).statements, ask(foreign).statements) for _ in range(3)]
            absent_takes, foreign_takes = (set(each) for each in zip(*counts, strict=True))
            assert absent_takes & foreign_takes, (foreign, "statements", counts)
    return found


def afresh(ask: Any) -> Any:
    """Each time as if nobody had asked before, for statements to be counted."""

    def asking(what: Any) -> Answer:
        sending.unknown()
        answer: Answer = ask(what)
        return answer

    return asking


@each(lambda each: each.parameters)
def test_ids_of_another_tenant_in_the_address_lead_nowhere(
    layers: str, operation: Operation, mine: World, things: Things, other: Other
) -> None:
    theirs = other.world
    body = operation.body(mine.word)

    for role, client in callers(operation, mine, layers).items():
        for foreign, nowhere in addresses.tried(operation, things, other.things):

            def ask(address: str, client: Any = client) -> Answer:
                return sending.ask(client, operation.method, address, body)

            answer = same(ask, theirs, foreign, nowhere, layers)
            made = operation.makes_by_name and answer.status in {200, 201}
            allowed = {404, 401 if role == NOBODY or operation.of_runs else 403}
            assert made or answer.status in allowed, (role, foreign, answer.status, answer.body)


@each(lambda each: each.method == "get")
def test_filters_find_nothing_of_another_tenant(
    layers: str, operation: Operation, mine: World, things: Things, other: Other
) -> None:
    theirs = other.world
    address = addresses.own(operation, things)
    client = mine.agent if operation.of_runs else mine.admin

    def ask(query: str) -> Answer:
        return sending.ask(client, operation.method, f"{address}?{query}")

    plain = ask("")
    silent(plain, theirs, address)
    # Or what others are refused would be refused to everybody.
    assert plain.status == 200 or any(code in plain.body for code in NOTHING_YET), (address, plain.body)
    asked: dict[str, Answer] = {}
    for name, kind in operation.queries:
        ids = addresses.candidates(other.things, name) if kind == "uuid" else []
        for foreign in ids:
            same(ask, theirs, f"{name}={foreign}", f"{name}={NOWHERE}", layers, asked)
        if (operation.address, name) in TELLS_OF_TRIES:
            silent(ask(f"{name}={theirs.word}"), theirs, (address, name))
        elif kind in {"string", "array"}:
            same(ask, theirs, f"{name}={theirs.word}", f"{name}={NOWHERE_WORD}", layers)
    if layers == BOTH:  # refused before anything is looked for, whichever layer would keep it
        silent(ask("ordering=-tenant__apitoken__secret_hash"), theirs, address)


@each(lambda each: each.content is not None)
def test_bodies_that_name_what_belongs_to_another_tenant_reach_nothing(
    layers: str, operation: Operation, mine: World, things: Things, other: Other
) -> None:
    theirs = other.world
    address, least = addresses.own(operation, things), operation.body(NOWHERE_WORD)
    client = mine.agent if operation.of_runs else mine.admin

    def ask(body: Any) -> Answer:
        return sending.ask(client, operation.method, address, body)

    asked: dict[str, Answer] = {}
    for path, kind in operation.places():
        if operation.of_runs and kind == "word":
            continue  # what an agent says may end its run, and a second word then finds it over
        names = addresses.candidates(other.things, path) if kind == "uuid" else [theirs.word]
        for foreign in names:
            nowhere = NOWHERE if kind == "uuid" else NOWHERE_WORD
            same(ask, theirs, put(least, path, foreign), put(least, path, nowhere), layers, asked)
    if isinstance(least, dict):
        given = {**least, "tenant": str(theirs.tenant.pk), "tenantId": str(theirs.tenant.pk)}
        answer = ask(given)
        assert theirs.canary not in answer.whole


@each()
def test_without_an_id_nothing_of_another_tenant_is_shown(
    layers: str, operation: Operation, mine: World, things: Things, other: Other
) -> None:
    theirs = other.world
    address, body = addresses.own(operation, things), operation.body(mine.word)

    for role, client in callers(operation, mine, layers).items():
        answer = sending.ask(client, operation.method, address, body)
        silent(answer, theirs, (role, address))
