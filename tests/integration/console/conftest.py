"""Members at the pages of the console, and the items that need their decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.test.utils import CaptureQueriesContext

from tenants.context import APP, SYSTEM, tenant_scope
from tenants.models import Membership, Tenant
from tests.console_user import Person
from tests.engine import Engine
from tests.questions import Questions
from tests.superusers import create_superuser


@pytest.fixture
def questions(engine: Engine, tenant: Tenant) -> Questions:
    """Creates items of every kind in the inbox of `acme`."""
    return Questions(engine, tenant)


@pytest.fixture
def person(tenant: Tenant) -> Callable[..., Person]:
    """`person("ann", role="reviewer", human_roles=["editor"])`: a member of `acme`, or of the tenants that are given."""

    def make_person(
        name: str = "ann", *tenants: Tenant, role: str = "operator", human_roles: Sequence[str] = ()
    ) -> Person:
        user = User.objects.create_user(name, password="a long password")
        for each in tenants or (tenant,):
            with tenant_scope(each.pk):
                Membership.objects.create(tenant=each, user=user, role=role, human_roles=list(human_roles))
        return Person(user)

    return make_person


@pytest.fixture
def ann(person: Callable[..., Person]) -> Person:
    """An operator of `acme`."""
    return person("ann")


@pytest.fixture
def boss(person: Callable[..., Person]) -> Person:
    """An admin of `acme`."""
    return person("boss", role="admin")


@pytest.fixture
def root(database: None) -> Person:
    """A superuser who is no member of any tenant."""
    return Person(create_superuser())


@pytest.fixture
def queries_of() -> Callable[[Person, str], list[str]]:
    """`queries_of(ann, "/queues/")` returns the statements with which the page reads tables."""

    def queries(who: Person, address: str) -> list[str]:
        with (
            CaptureQueriesContext(connections[APP]) as own,
            CaptureQueriesContext(connections[SYSTEM]) as wide,
        ):
            who.get(address)
        captured = [query["sql"] for query in (*own.captured_queries, *wide.captured_queries)]
        return [sql for sql in captured if " FROM " in sql]

    return queries
