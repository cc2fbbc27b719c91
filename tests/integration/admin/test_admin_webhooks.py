"""Events and webhooks in the admin: superusers can read them, nobody can change them, and no page shows a secret."""

from __future__ import annotations

from django.test import Client
from django.urls import reverse

from tenants.context import tenant_scope
from tenants.models import Tenant
from tenants.models.events import Event
from tests.browsing import list_url, page_url, visible_text
from tests.integration.test_webhooks import deliveries, raise_events, webhook


def test_events_webhooks_and_deliveries_are_displayed_without_secrets_and_cannot_be_changed(
    root: Client, tenant: Tenant
) -> None:
    endpoint, secret = webhook(tenant, "https://hooks.example.com/ours", description="Our board")
    raise_events(tenant)
    with tenant_scope(tenant.pk):
        event = Event.objects.get()

    for row, text in (
        (endpoint, "Our board"),
        (deliveries(tenant)[0], "alert.raised"),
        (event, "alert.raised"),
    ):
        listed, page = root.get(list_url(type(row))), root.get(page_url(row))
        assert text in visible_text(listed)
        assert text in visible_text(page)
        for answer in (listed, page):
            assert secret not in answer.content.decode()
            assert endpoint.secret_sealed not in answer.content.decode()
        assert root.post(page_url(row), {"enabled": ""}).status_code == 403
        assert root.get(reverse(f"admin:tenants_{row._meta.model_name}_add")).status_code == 403
