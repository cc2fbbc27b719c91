"""The other tenant, which the tests of a module share."""

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
    """The other tenant, its ids, and digests of its data before the tests."""

    world: World
    things: Things
    before: dict[str, Any]

    def changed(self) -> set[str]:
        """Return the places where its data has changed."""
        now = traces.digests(self.world.tenant.pk)
        return {place for place in self.before | now if self.before.get(place) != now.get(place)}


@pytest.fixture(autouse=True)
def no_lockout(settings: Any, unthrottled: None) -> None:
    """Switch lockouts and limits off, because thousands of failing requests come from one address here."""
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
    things = ids_of(built)
    return Other(built, things, traces.digests(built.tenant.pk))


def ids_of(built: World) -> Things:
    """Look up all ids before the tests, because reading them changes data such as the last use of a token."""
    things = Things(built)
    for operation in operations():
        with suppress(AssertionError):  # because the test of that operation fails with the same error
            addresses.own(operation, things)
    return things


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the order of the sweep even if tests are shuffled, because operations that delete come last."""
    places = [place for place, item in enumerate(items) if item.path.name == "test_sweep.py"]
    for place, item in zip(places, sorted((items[place] for place in places), key=_order), strict=True):
        items[place] = item


def _order(item: Any) -> tuple[str, int]:
    return item.callspec.params["layers"], inspect.unwrap(item.function).__code__.co_firstlineno
