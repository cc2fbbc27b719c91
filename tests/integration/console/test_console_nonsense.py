"""Invalid values in addresses: a page reports them or shows nothing, and never breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import quote

from django.utils.http import urlencode

from tenants.models import Tenant
from tests.console_user import Person
from tests.engine import Engine
from tests.scheduling import make_pipeline, make_schedule

#: What the pages read from their addresses.
NAMES: dict[str, tuple[str, ...]] = {
    "/live/?tenant=acme&": ("after", "activity", "pipeline_run"),
    "/activities/?": ("q", "after"),
    "/activities/bulk/?": ("q",),
    "/inbox/?": ("kind", "role", "search", "page"),
    "/runs/?": ("pipeline", "after", "q"),
    "/dead-letters/?": ("state", "role"),
    "/schedules/?": ("search", "state"),
    "/schedules/try/?": ("schedule",),
    "/schedules/new/?": ("pipeline",),
    "/pipelines/?": ("search",),
    "/pipelines/flow/?": ("version",),
    "/usage/?": ("role", "pipeline"),
    "/usage/?from=2026-01-01&": ("to",),
    "/usage/export/days/?": ("from",),
    "/audit/?": ("actor", "operation", "kind", "object", "outcome", "since", "until", "before"),
}
NONSENSE = (
    "\x00", "9" * 30, "-1", "0001-01-01", "9999-12-31", "\u00b2", "-99999999999999999." + "0" * 32, "priority:<\u00b2",
)  # fmt: skip


def addresses() -> Iterator[str]:
    """Yield addresses in which each parameter takes each value once."""
    for page, names in NAMES.items():
        for turn in range(len(NONSENSE)):
            typed = {name: NONSENSE[(turn + place) % len(NONSENSE)] for place, name in enumerate(names)}
            yield f"{page}{urlencode(typed)}"


def test_no_address_breaks_a_page(engine: Engine, tenant: Tenant, person: Callable[..., Person]) -> None:
    engine.submit(tenant)
    make_schedule(tenant)
    make_pipeline(tenant, "flow")
    boss = person("boss", role="admin")

    statuses = {address: boss.browser.get(address).status_code for address in addresses()}

    assert {address: status for address, status in statuses.items() if status >= 500} == {}


def test_no_name_of_a_tenant_breaks_a_page(root: Person) -> None:
    for text in NONSENSE:
        assert root.browser.get(f"/queues/?{urlencode({'tenant': text})}").status_code in (200, 404)


def test_no_name_of_a_pipeline_breaks_a_page(tenant: Tenant, person: Callable[..., Person]) -> None:
    boss = person("boss", role="admin")
    for text in (*NONSENSE, "a/b", "../x", "start", "%"):
        for page in ("", "start/", "copy/"):
            assert boss.browser.get(f"/pipelines/{quote(text)}/{page}").status_code == 404, text
