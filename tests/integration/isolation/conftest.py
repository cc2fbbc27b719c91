"""One tenant that is to be kept from another, for all the tests of a module."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from tests import cleaning
from tests.integration.isolation import addresses, traces, world
from tests.integration.isolation.addresses import Things
from tests.integration.isolation.surface import operations
from tests.integration.isolation.world import World


@dataclass(frozen=True)
class Other:
    """The other tenant, where its things are, and what it had when it was left alone."""

    world: World
    things: Things
    had: dict[str, Any]

    def changed(self) -> set[str]:
        """Where something of its is not as it was."""
        has = traces.of(self.world.tenant.pk)
        return {place for place in self.had | has if self.had.get(place) != has.get(place)}


@pytest.fixture(autouse=True)
def patient(settings: Any) -> None:
    """Thousands of tries with what opens nothing come from one address here; being locked out would hide what they find."""
    settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ADDRESS = settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ACCOUNT = (
        1_000_000
    )


@pytest.fixture(scope="module")
def empty(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        yield
        cleaning.empty_database()
        cleaning.empty_redis()


@pytest.fixture(scope="module")
def other(empty: None) -> Other:
    built = world.build("birchco", "birchco-word", "quartz-b-91c2")
    things = found(built)
    return Other(built, things, traces.of(built.tenant.pk))


def found(built: World) -> Things:
    """Its ids, all looked up before anything is tried: asking for them leaves a trace, as the last use of a token."""
    things = Things(built)
    for operation in operations():
        with suppress(AssertionError):  # the test of the operation fails with it
            addresses.own(operation, things)
    return things


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The sweep keeps its order, also where tests are shuffled: what removes things comes last."""
    places = [place for place, item in enumerate(items) if item.path.name == "test_sweep.py"]
    for place, item in zip(places, sorted((items[place] for place in places), key=_turn), strict=True):
        items[place] = item


def _turn(item: Any) -> tuple[str, int]:
    return item.callspec.params["layers"], inspect.unwrap(item.function).__code__.co_firstlineno
