"""Fixtures of all tests: real servers, a database that is emptied after each test, tenants, and clients with their tokens."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from copy import copy
from datetime import UTC, datetime
from importlib import import_module
from itertools import count
from typing import Any

import psutil
import pytest
from _pytest import runner
from _pytest.logging import catching_logs
from django.conf import settings
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from pytest_django.plugin import blocking_manager_key

from tests import servers

gc.disable()  # see `_collect_garbage_if_memory_is_short`

MUCH_GARBAGE = 500_000  # objects
SHORT_BYTES = 3 << 30
SETTINGS = "orchestrator.settings.test"
MONTHLY_JOB = "pipelines.monthly_job"  # the uid of its receiver
#: Fixtures of pytest-django for marks, templates and classes that no test here uses. They took a fifth of the time of an empty test.
NEEDLESS = {
    "_django_clear_site_cache", "_django_db_marker", "_django_isolate_apps", "_django_setup_unittest",
    "_fail_for_invalid_template_variable", "_live_server_helper", "_template_string_if_invalid_marker",
}  # fmt: skip

if settings.configured and os.environ.get("DJANGO_SETTINGS_MODULE") != SETTINGS:
    raise pytest.UsageError(
        "Django was set up before the tests' servers were known. "
        "Unset DJANGO_SETTINGS_MODULE; the tests choose their settings themselves."
    )
# A busy machine must fail no test.
hypothesis_settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("busy")
servers.prepare()
os.environ["DJANGO_SETTINGS_MODULE"] = SETTINGS
servers.give_own_names(settings)

import django  # noqa: E402

django.setup()

from django.contrib.auth.models import User  # noqa: E402
from django.db import connections  # noqa: E402
from django.template import RequestContext  # noqa: E402
from django.test import client as test_client  # noqa: E402
from rest_framework.test import APIClient  # noqa: E402

from activities import outputs, run_logs, selectors  # noqa: E402
from activities.execution import agent_tools  # noqa: E402
from activities.maintenance import invariants  # noqa: E402
from agents import adapters  # noqa: E402
from console import health, overview  # noqa: E402
from orchestrator.celery import app as celery  # noqa: E402
from pipelines import conditions, receivers  # noqa: E402
from pipelines.deliverables import monthly_job  # noqa: E402
from tenants import (  # noqa: E402
    clock,
    login_throttle,
    registration,
    tokens,
)
from tenants.api import auditing, throttling  # noqa: E402
from tenants.context import OWNER, tenant_scope  # noqa: E402
from tenants.events import announcements, connection_limits  # noqa: E402
from tenants.models import ApiToken, Membership, Tenant  # noqa: E402
from tenants.postgresql import base as postgresql  # noqa: E402
from tenants.signals import tenant_changed  # noqa: E402
from tests import cleaning, pages, quick_python, quick_rows  # noqa: E402

# They give up on Redis sooner than a machine that is busy with tests may need to answer, and then go another way.
for impatient in (
    agent_tools, announcements, auditing, conditions, connection_limits, login_throttle, overview, run_logs, selectors, throttling,
):  # fmt: skip
    impatient.PATIENCE_SECONDS = 20.0  # type: ignore[attr-defined]
outputs.READ_SECONDS = run_logs.WRITE_SECONDS = health.REDIS_PATIENCE_SECONDS = 20.0
health.check_all.__kwdefaults__["patience_seconds"] = 20.0
postgresql.PATIENCE_SECONDS = 20  # likewise of PostgreSQL, which then counts as silent
# Planning for the actual parameters takes longer than checking the few rows of a test.
invariants._FOR_THE_CHECK = invariants._FOR_THE_CHECK.replace("force_custom_plan", "force_generic_plan")


def _store_context_of_page(store: dict[str, Any], context: Any, **signal: Any) -> None:
    if isinstance(context, RequestContext):
        store.setdefault("context", [copy(context)])


# `response.context` is that of the page alone. Django also stores those of all templates within it, which takes a thirtieth of the time.
test_client.store_rendered_templates = _store_context_of_page  # type: ignore[attr-defined]


def _catch_at_the_root(catching: Any) -> logging.Handler:
    root = logging.getLogger()
    if catching.level is not None:
        catching.handler.setLevel(catching.level)
        catching.orig_level = root.level
        root.setLevel(min(root.level, catching.level))
    root.addHandler(catching.handler)
    catching.attached_loggers.append(root)
    return catching.handler  # type: ignore[no-any-return]


# pytest looks at each of 270 loggers six times per test, for those that do not propagate. No test reads the records of such a logger.
catching_logs.__enter__ = _catch_at_the_root  # type: ignore[method-assign]


@pytest.hookimpl(trylast=True)  # after the tests were shuffled
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run long tests first, so that no process is left alone with one of them at the end, and tests that share a browser in succession.

    Without servers, leave out long tests and those that need servers.
    """
    if not servers.are_there():
        left_out = {item for item in items if _needs_servers(item) or item.get_closest_marker("long")}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    first = ("ui", "acceptance", "long")
    items.sort(key=lambda item: [item.get_closest_marker(mark) is None for mark in first])
    for item in items:
        needless = NEEDLESS if item.get_closest_marker("urls") else {*NEEDLESS, "_django_set_urlconf"}
        names = item.fixturenames  # type: ignore[attr-defined]
        names[:] = [name for name in names if name not in needless]


def _needs_servers(item: pytest.Item) -> bool:
    return "django_db_setup" in item.fixturenames  # type: ignore[attr-defined]


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Freeze what was loaded, so that nothing searches it for garbage. It includes 15 MB of garbage, because freeing them first takes
    0.7 s in each process.
    """
    in_processes = session.config.getoption("processes", 0)
    making = multiprocessing.get_context("fork").Process(target=_make_pattern, args=(session.config,))
    if has_pattern := in_processes and servers.is_ours("postgres"):
        making.start()
        quick_python.begin()
    collected = yield
    if has_pattern:
        making.join()
    if in_processes:
        for name in adapters.names():
            # Otherwise each process imports the libraries of vendors, which takes two seconds.
            import_module(f"agents.adapters.{name}")
    gc.freeze()
    return collected


def _make_pattern(config: pytest.Config) -> None:
    """Make the database that all test processes copy, while the tests are collected."""
    from django.test.utils import setup_databases

    servers.WORKER = "pattern"
    with config.stash[blocking_manager_key].unblock(), servers.one_after_another() as pattern:
        setup_databases(verbosity=0, interactive=False, serialized_aliases=[])
        connections.close_all()  # because a database that is copied may have no connections
        pattern.write_text(connections[OWNER].settings_dict["NAME"])  # type: ignore[union-attr]


@pytest.hookimpl(optionalhook=True)
def pytest_process_forked(name: str) -> None:
    """Give a process of `tests.forks` its own databases."""
    servers.become(name, settings)
    celery.conf.broker_url = settings.CELERY_BROKER_URL


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """End the browser, which consecutive tests with the mark `ui` share, also those of several files."""
    if item.get_closest_marker("ui") is None:
        pages.end_browser()
    _collect_garbage_if_memory_is_short()


def _collect_garbage_if_memory_is_short() -> None:
    """Collecting garbage took a thirtieth of the time of tests. A process leaves about 500 MB of it."""
    if gc.get_count()[0] > MUCH_GARBAGE and psutil.virtual_memory().available < SHORT_BYTES:
        gc.collect()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> object:
    return _call_on_a_large_stack(
        _run_test if servers.WORKER else runner.pytest_runtest_protocol, item, nextitem
    )


def _run_test(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run a test as pytest does, but do not report each setup and teardown that passed.

    Test processes send each report to the first process, which takes time in both. Only `--durations` needs them.
    """
    all_reports = item.config.option.durations is not None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in runner.runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed or all_reports:
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _call_on_a_large_stack(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


# CPython keeps frames in chunks of 16 kB. If a loop calls functions at the end of a chunk, each call maps a new chunk and unmaps it, which
# took an eighth of the processor time of tests. This frame of 560 kB gets a chunk of 1 MB, whose rest is enough for the frames of a test.
_call_on_a_large_stack.__code__ = _call_on_a_large_stack.__code__.replace(co_stacksize=70_000)


def pytest_unconfigure() -> None:
    if servers.WORKER:
        gc.freeze()  # because pytest now searches all that thousands of tests have left, and the process ends anyway
    quick_python.end()
    servers.stop()


@pytest.fixture(scope="session")
def django_db_setup(
    django_test_environment: None, django_db_blocker: Any, django_db_modify_db_settings: None
) -> Iterator[None]:
    """Create the test database as the owner of the tables; `default` and `system` are other roles on it.

    One process migrates it and the others copy it, which takes a twentieth of the time.
    """
    from django.test.utils import setup_databases, teardown_databases

    owner = connections[OWNER]
    with django_db_blocker.unblock(), servers.one_after_another() as pattern:
        if pattern and pattern.exists():
            owner.settings_dict["TEST"]["TEMPLATE"] = pattern.read_text()
        databases = setup_databases(verbosity=0, interactive=False, serialized_aliases=[])
        if pattern and not pattern.exists():
            connections.close_all()  # because a database that is copied may have no connections
            owner.creation.clone_test_db("pattern")
            pattern.write_text(owner.creation.get_test_db_clone_settings("pattern")["NAME"])
    yield
    with django_db_blocker.unblock():
        cleaning.end_connections()
        teardown_databases(databases, verbosity=0)


@pytest.fixture(autouse=True)
def known_time() -> None:
    """Set the clock without asking PostgreSQL, which is on this machine, so that statements can be counted."""
    clock.learn(datetime.now(UTC), requested_at=time.monotonic())


@pytest.fixture
def database(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Let the test use PostgreSQL and Redis with real commits, and empty both afterwards."""
    with django_db_blocker.unblock():
        cleaning.empty_redis()  # because processes of an earlier test may have written after it ended
        yield
        cleaning.empty_database()
        cleaning.empty_redis()


@pytest.fixture
def monthly_jobs() -> None:
    """Let tenants have their monthly job, as in every installation."""


@pytest.fixture
def make_tenant(request: pytest.FixtureRequest, database: None) -> Callable[..., Tenant]:
    """`make_tenant(slug, **fields)` creates a tenant, by default with a new slug.

    It has its monthly job only with the fixture `monthly_jobs`, because creating that takes four times as long as creating the tenant.
    """
    numbers = count(1)
    on_change = nullcontext if "monthly_jobs" in request.fixturenames else _without_monthly_job

    def create(slug: str = "", **fields: Any) -> Tenant:
        with on_change(), quick_rows.of(Tenant):
            tenant = registration.register(slug or f"tenant-{next(numbers)}", fields.pop("name", ""))
        if fields:
            with tenant_scope(tenant.pk):
                Tenant.objects.filter(pk=tenant.pk).update(**fields)
                tenant.refresh_from_db()
        return tenant

    return create


@contextmanager
def _without_monthly_job() -> Iterator[None]:
    tenant_changed.disconnect(dispatch_uid=MONTHLY_JOB)
    try:
        yield
    finally:
        tenant_changed.connect(
            receivers.receiver_of(monthly_job.update), weak=False, dispatch_uid=MONTHLY_JOB
        )


@pytest.fixture
def tenant(make_tenant: Callable[..., Tenant]) -> Tenant:
    return make_tenant("acme")


@pytest.fixture
def other_tenant(make_tenant: Callable[..., Tenant]) -> Tenant:
    return make_tenant("globex")


def member(tenant: Tenant, name: str, role: str) -> int:
    """Return the id of the user of this name, who becomes a member of the tenant unless they are one."""
    user, _ = User.objects.get_or_create(username=name)
    with tenant_scope(tenant.pk):
        Membership.objects.get_or_create(tenant=tenant, user=user, defaults={"role": role})
    return int(user.pk)


@pytest.fixture
def api(request: pytest.FixtureRequest, database: None) -> Callable[..., APIClient]:
    """`api(role="admin", tenant=tenant, **token)` returns a client with a bearer token, by default of the fixture `tenant`.

    With `person="ann"` the token belongs to ann, who becomes a member of the tenant.
    """

    def client_of(role: str = "admin", tenant: Tenant | None = None, **token: Any) -> APIClient:
        owner = tenant or request.getfixturevalue("tenant")
        if person := token.pop("person", ""):
            token["user_id"] = member(owner, person, role)
        with quick_rows.of(ApiToken):
            _, secret = tokens.create(owner, role, token.pop("name", f"{role} of {owner.slug}"), **token)
        client = APIClient()
        client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
        return client

    return client_of


@pytest.fixture
def process_environment(database: None) -> dict[str, str]:
    """The environment in which a process uses the databases of the test."""
    return servers.environment(settings)
