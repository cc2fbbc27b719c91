"""Hostile text on the operation pages adds no element or attribute compared with harmless text."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser

from activities.models import Activity, DeadLetter
from agents.exceptions import PermanentAgentError
from pipelines import submission, versions
from pipelines.cancellation import cancel_run
from pipelines.models import Firing
from tenants.context import tenant_scope
from tenants.models import Channel, Tenant
from tenants.models.events import WebhookDelivery, WebhookEndpoint
from tests.console_user import Person
from tests.engine import Engine
from tests.failed_work import submit_failing
from tests.scheduling import NOON, make_schedule
from tests.spending import make_budget

HARMLESS = "plain words"
HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(1)></td>{% debug %}"


class Elements(HTMLParser):
    """Every element with its attributes' names."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[tuple[str, ...]] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add((tag, *sorted(name for name, _ in attrs)))


def arrange(engine: Engine, tenant: Tenant, text: str) -> list[str]:
    """Create one object of each kind with a text; return the pages that show them."""
    engine.serve(tenant)
    submit_failing(engine, tenant, "qa", error=PermanentAgentError(text, code="broken"))
    schedule = make_schedule(tenant, text, description=text, params={text: text})
    budget = make_budget(tenant, name=text)
    params = {text: text, "topic": text}
    versions.save(
        tenant.pk,
        {
            "key": "flow",
            "name": text,
            "description": text,
            "params": params,
            "steps": [{"id": "a", "name": text, "agent_role": "qa", "description": text}],
        },
        actor=f"token:{text}",
    )
    run = submission.start_run(
        tenant.pk, "flow", submission.NewRun(name=text, params=params), actor=f"token:{text}"
    )
    # Ended at once, so that both tenants show it in the same state.
    cancel_run(tenant.pk, run.pk, actor=f"token:{text}", reason=text)
    with tenant_scope(tenant.pk):
        letter = DeadLetter.objects.get()
        Firing.objects.create(
            tenant=tenant, schedule=schedule, nominal_at=NOON, state="skipped", reason=text[:200]
        )
        Channel.objects.create(tenant=tenant, kind="ads", name=text, details={"note": text})
        webhook = WebhookEndpoint.objects.create(
            tenant=tenant, url="https://example.com/", description=text, secret_sealed="", enabled=False
        )
        WebhookDelivery.objects.create(
            tenant=tenant, endpoint=webhook, kind="alert.raised", state="failed", error=text
        )
    return [
        "/queues/", "/queues/dev/", "/dead-letters/", f"/dead-letters/{letter.fingerprint}/", "/schedules/", f"/schedules/{schedule.pk}/",
        f"/schedules/try/?schedule={schedule.pk}", "/usage/", "/audit/", "/settings/budgets/", f"/settings/budgets/{budget.pk}/",
        "/settings/channels/", "/settings/webhooks/", f"/settings/webhooks/{webhook.pk}/", "/pipelines/", "/pipelines/flow/",
        "/pipelines/flow/start/", "/pipelines/flow/copy/", "/schedules/new/?pipeline=flow", f"/schedules/{schedule.pk}/change/", "/runs/",
        f"/runs/{run.pk}/",
    ]  # fmt: skip


def wait_in_line(engine: Engine, tenant: Tenant, text: str) -> None:
    """Submit work that stays in the queue."""
    engine.submit(tenant, "dev", group_key=text[:60])
    with tenant_scope(tenant.pk):
        Activity.objects.update(name=text)


def elements(who: Person, address: str) -> set[tuple[str, ...]]:
    reader = Elements()
    reader.feed(who.get(address).content.decode())
    return reader.found


def test_hostile_text_adds_no_element_and_no_attribute(
    engine: Engine, tenant: Tenant, other_tenant: Tenant, person: Callable[..., Person]
) -> None:
    plain, hostile = person("ann", tenant, role="admin"), person("eve", other_tenant, role="admin")
    pages = list(zip(arrange(engine, tenant, HARMLESS), arrange(engine, other_tenant, HOSTILE), strict=True))
    wait_in_line(engine, tenant, HARMLESS)
    wait_in_line(engine, other_tenant, HOSTILE)

    for harmless, suspect in pages:
        assert elements(hostile, suspect) - elements(plain, harmless) == set(), suspect
