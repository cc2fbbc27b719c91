"""A result that comes too late is refused by the statement that would store it, whatever was looked at before."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from django.db import connections

from activities import cancellation
from activities.exceptions import RunSuperseded
from activities.execution import results
from agents.contracts import Accepted, Completed, Output
from tenants.context import APP, SYSTEM, tenant_scope
from tenants.models import Tenant
from tests.engine import Engine, eventually
from tests.spending import token_of

pytestmark = pytest.mark.usefixtures("one_at_a_time")

LATE = Completed(Output(content="late"))


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant)
    engine.agent.behaviour = lambda request: Accepted()
    return tenant


@pytest.mark.parametrize("what", ["another run has taken over", "it was cancelled"])
def test_a_result_that_waits_for_whoever_ends_its_run_is_refused(
    engine: Engine, acme: Tenant, what: str
) -> None:
    """Both have seen a live run; the result's statement waits for the row, and finds it changed."""
    (activity_id,) = engine.submit(acme)
    engine.drain()
    first = token_of(acme, activity_id)
    moved, seen = Event(), Event()

    def ends_it() -> None:
        with tenant_scope(acme.pk):
            if what == "it was cancelled":
                cancellation.cancel(acme.pk, activity_id, actor="Ann")
            else:
                results.stalled(first)
                with connections[APP].cursor() as cursor:  # the next claim, in the same moment
                    cursor.execute(
                        "UPDATE activities_activity SET status = 'assigned', fence = fence + 1 WHERE id = %s",
                        [activity_id],
                    )
                    cursor.execute(
                        "UPDATE activities_activity SET status = 'in_progress' WHERE id = %s", [activity_id]
                    )
            moved.set()
            assert seen.wait(20), "the result never came to wait"
        connections.close_all()

    def reports() -> BaseException | None:
        assert moved.wait(20)
        try:
            results.completed(first, LATE, needs_approval=False)
        except RunSuperseded as refusal:
            return refusal
        finally:
            connections.close_all()
        return None

    def waits() -> bool:
        with connections[SYSTEM].cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
            return bool(cursor.fetchone()[0])

    with ThreadPoolExecutor(2) as pool:
        ending, late = pool.submit(ends_it), pool.submit(reports)
        eventually(waits)
        seen.set()
        ending.result()
        refusal = late.result()

    assert isinstance(refusal, RunSuperseded)
    found = engine.get(acme, activity_id)
    assert (found.status, found.output_ref) == (
        ("cancelled", None) if what == "it was cancelled" else ("in_progress", None)
    )
