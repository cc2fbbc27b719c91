"""People at the inbox page, and what they are asked there."""

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
from tests.superusers import seeing_all


@pytest.fixture
def asked(engine: Engine, tenant: Tenant) -> Questions:
    """Asks people things in the tenant `acme`."""
    return Questions(engine, tenant)


@pytest.fixture
def person(tenant: Tenant) -> Callable[..., Person]:
    """`person("ann", role="reviewer", human_roles=["editor"])`: a member of `acme`, or of the tenants that are given."""

    def made(
        name: str = "ann", *tenants: Tenant, role: str = "operator", human_roles: Sequence[str] = ()
    ) -> Person:
        user = User.objects.create_user(name, password="a long password")
        for each in tenants or (tenant,):
            with tenant_scope(each.pk):
                Membership.objects.create(tenant=each, user=user, role=role, human_roles=list(human_roles))
        return Person(user)

    return made


@pytest.fixture
def ann(person: Callable[..., Person]) -> Person:
    """An operator of `acme`."""
    return person("ann")


@pytest.fixture
def root(database: None) -> Person:
    """A superuser who is no member of any tenant."""
    return Person(seeing_all())


@pytest.fixture
def asked_queries() -> Callable[[Person, str], list[str]]:
    """`asked_queries(ann, "/queues/")`: the statements with which the page reads tables."""

    def asked(who: Person, address: str) -> list[str]:
        with (
            CaptureQueriesContext(connections[APP]) as own,
            CaptureQueriesContext(connections[SYSTEM]) as wide,
        ):
            who.get(address)
        found = [query["sql"] for query in (*own.captured_queries, *wide.captured_queries)]
        return [sql for sql in found if " FROM " in sql]

    return asked
