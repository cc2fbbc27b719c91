"""The audit trail gets one entry for each request that changes something or is refused, and none for other requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.urls import get_resolver
from django.urls.resolvers import URLPattern, URLResolver
from rest_framework.test import APIClient

from activities.models import Activity
from tenants.api.views import TenantView
from tenants.context import system_scope, tenant_scope
from tenants.models import Tenant
from tenants.models.audit import AuditEntry
from tests.engine import Engine
from tests.integration.permission_table import permissions

API = "/api/v1"
Clients = Callable[..., APIClient]
CHANNEL = {"kind": "ads", "name": "Ads", "details": {"account": "17"}}
FLOW = {
    "key": "flow",
    "name": "Flow",
    "steps": [{"id": "a", "agent_role": "qa", "description": "Secret plan"}],
}


def entries(tenant: Tenant) -> list[AuditEntry]:
    with tenant_scope(tenant.pk):
        return list(AuditEntry.objects.for_tenant(tenant).order_by("number"))


def _views(patterns: Any, prefix: str = "") -> list[tuple[str, Any]]:
    routes = []
    for each in patterns:
        if isinstance(each, URLResolver):
            routes += _views(each.url_patterns, prefix + str(each.pattern))
        elif isinstance(each, URLPattern) and (prefix + str(each.pattern)).startswith("api/"):
            routes.append((prefix + str(each.pattern), each.callback))
    return routes


def test_every_view_that_changes_something_is_audited_or_has_a_reason() -> None:
    """The tests below prove that requests to an audited view leave an entry."""
    reasons, outside = {}, []
    for route, view in _views(get_resolver().url_patterns):
        kind = getattr(view, "cls", None)
        methods = getattr(view, "actions", None) or {
            name: name for name in ("get", "post", "put", "patch", "delete")
        }
        if kind is None or not any(hasattr(kind, to) for name, to in methods.items() if name != "get"):
            continue
        if (
            not issubclass(kind, TenantView)
            or kind._answer is not TenantView._answer
            or "dispatch" in vars(kind)
        ):
            outside.append(route)
        elif kind.not_audited:
            reasons[kind.__name__] = kind.not_audited

    assert outside == []
    assert reasons.keys() == {"RunHeartbeat", "RunLog", "TenantSwitches", "UnsavedPreview"}


#: Operations that need only a body, in an order in which all of them succeed. `{id}` is the first created id of the collection.
CALLS: list[tuple[str, str, Any]] = [
    ("POST", "/channels/", CHANNEL),
    ("PUT", "/channels/{id}/", {**CHANNEL, "name": "Other ads"}),
    ("POST", "/channels/{id}/disable/", {}),
    ("POST", "/channels/{id}/reactivate/", {}),
    ("POST", "/channels/{id}/expire/", {}),
    ("DELETE", "/channels/{id}/", None),
    (
        "POST",
        "/templates/",
        {"key": "letter", "name": "Letter", "agent_role": "qa", "description": "Write it"},
    ),
    ("POST", "/pipelines/", FLOW),
    ("PUT", "/pipelines/{key}/", {**FLOW, "name": "Better flow"}),
    ("POST", "/pipelines/{key}/runs/", {}),
    ("POST", "/pipeline-runs/{id}/cancel/", {}),
    ("POST", "/activities/", {"name": "Look", "agent_role": "qa", "input": {"content": "Very secret"}}),
    ("POST", "/activities/{id}/cancel/", {"reason": "Never mind"}),
    ("POST", "/datasets/", {"name": "keywords", "fields": {"id": "string"}, "rows": [{"id": "1"}]}),
    ("POST", "/datasets/{name}/rows/", [{"id": "2"}]),
    ("DELETE", "/datasets/{name}/rows/{key}/", None),
    ("DELETE", "/datasets/{name}/", None),
    ("POST", "/budgets/", {"name": "All", "cap": "10"}),
    ("PUT", "/budgets/{id}/", {"name": "All", "cap": "20"}),
    ("DELETE", "/budgets/{id}/", None),
    (
        "PUT",
        "/agent-configs/{role}/",
        {"max_concurrency": 3, "auth": {"type": "bearer", "token": "sk-hidden"}},
    ),
    ("POST", "/queues/{role}/pause/", {}),
    ("POST", "/queues/{role}/resume/", {}),
    ("POST", "/deliverables/", {"key": "blog", "name": "Blog", "pipelines": ["flow"]}),
    ("POST", "/inbox/decide/", {"items": [{"id": str(uuid4()), "decision": "approved"}]}),
    ("POST", "/dead-letters/replay/", {"filter": {"state": "open"}}),
    ("POST", "/agent-configs/{role}/rotate-secret/", {}),
    ("POST", "/webhooks/", {"url": "https://1.1.1.1/events"}),
    ("PUT", "/webhooks/{id}/", {"url": "https://1.1.1.1/others"}),
    ("POST", "/webhooks/{id}/rotate/", {}),
    ("POST", "/webhooks/{id}/test/", {}),
    ("DELETE", "/webhooks/{id}/", None),
    ("POST", "/mailboxes/{key}/items/", {"kind": "message", "text": "Very secret"}),
    ("POST", "/mailboxes/{key}/take/", {"consumer": "somebody", "window_ms": 0}),
    ("POST", "/mailboxes/{key}/batches/{batch_id}/heartbeat/", {}),
    ("POST", "/mailboxes/{key}/batches/{batch_id}/completed/", {"result": "Very secret"}),
    ("POST", "/subagents/", {"subagent_type": "qa", "prompt": "Secret plan"}),
    ("POST", "/subagents/{id}/cancel/", {"reason": "Never mind"}),
    ("POST", "/activities/bulk/", {"action": "cancel", "filter": {"step": "none"}, "expected_count": 0}),
]


def test_each_operation_that_changes_something_leaves_exactly_one_entry(
    engine: Engine, tenant: Tenant, api: Clients
) -> None:
    client, named, wrong = api("admin"), {"key": "flow", "name": "keywords", "role": "qa"}, []
    ids: dict[str, str] = {}

    for method, path, body in CALLS:
        collection = path.split("/")[1]
        names = {**named, "id": ids.get(collection, ""), **({"key": "2"} if "rows/{key}" in path else {})}
        before = len(entries(tenant))
        answer = getattr(client, method.lower())(API + path.format(**names), body, format="json")
        if answer.status_code >= 400:
            wrong.append((method, path, answer.status_code, answer.content[:300]))
            continue
        data = answer.json() if answer.content else {}
        named |= {"batch_id": data["batch_id"]} if "batch_id" in data else {}
        if "subagent_id" in data:
            ids.setdefault(collection, data["subagent_id"])
        if "id" in data:
            ids.setdefault("pipeline-runs" if path.endswith("/runs/") else collection, data["id"])
        new = entries(tenant)[before:]
        if [(entry.operation, entry.outcome) for entry in new] != [(f"{method} {path}", "done")]:
            wrong.append((method, path, [entry.operation for entry in new]))
        assert (method, path) in permissions()

    assert wrong == []
    everything = json.dumps([[entry.changes, entry.detail] for entry in entries(tenant)])
    for hidden in ("sk-hidden", "Very secret", "Never mind", "Secret plan", "Write it", "whsec_"):
        assert hidden not in everything


def test_an_audit_entry_says_who_did_what_where_and_what_changed(tenant: Tenant, api: Clients) -> None:
    client = api("admin", name="ci")
    channel = client.post(f"{API}/channels/", CHANNEL, format="json").json()
    client.put(
        f"{API}/channels/{channel['id']}/", {**CHANNEL, "name": "New"}, format="json",
        headers={"X-Request-Id": "req-17", "X-Forwarded-For": "203.0.113.9"}, REMOTE_ADDR="198.51.100.7",
    )  # fmt: skip

    created, changed = entries(tenant)

    assert created.changes["kind"] == [None, "ads"]
    assert (changed.operation, changed.object_kind, changed.object_id) == (
        "PUT /channels/{id}/",
        "channels",
        channel["id"],
    )
    assert (changed.actor_kind, changed.actor_name) == ("token", "ci")
    assert changed.actor_id != ""
    assert (changed.request_id, changed.ip) == ("req-17", "198.51.100.7")
    assert changed.changes == {"name": ["Ads", "New"], "version": [1, 2]}
    client.delete(f"{API}/channels/{channel['id']}/")
    assert entries(tenant)[-1].changes["name"] == ["New", None]


def test_changes_of_retention_are_recorded_with_the_periods_before_and_after(
    tenant: Tenant, api: Clients
) -> None:
    client = api("admin")

    for kinds in ({"alerts": 30}, {"alerts": "never", "activities": 7}):
        assert client.put(f"{API}/retention/", {"kinds": kinds}, format="json").status_code == 200

    assert [entry.changes for entry in entries(tenant)] == [
        {"alerts": [90, 30]},
        {"alerts": [30, "never"], "activities": [90, 7]},
    ]


def test_changes_of_the_settings_of_scheduling_are_recorded_with_both_values(
    tenant: Tenant, api: Clients, scheduler_defaults: None
) -> None:
    answer = api("admin", platform=True).put(
        f"{API}/platform-configs/scheduler/", {"enabled": False}, format="json"
    )

    assert answer.status_code == 200, answer.json()
    (entry,) = entries(tenant)
    assert entry.changes["enabled"] == [True, False]


def test_forwarded_addresses_are_trusted_from_our_own_proxies_only(
    tenant: Tenant, api: Clients, settings: Any
) -> None:
    settings.ORCHESTRATOR_PROXY_HOPS = 1
    api("admin").post(
        f"{API}/channels/",
        CHANNEL,
        format="json",
        headers={"X-Forwarded-For": "6.6.6.6, 203.0.113.9"},
        REMOTE_ADDR="10.0.0.1",
    )

    assert entries(tenant)[0].ip == "203.0.113.9"


def test_repeated_replayed_refused_or_rolled_back_requests_leave_no_entry(
    tenant: Tenant, api: Clients
) -> None:
    client = api("admin")
    once = {"headers": {"Idempotency-Key": "k"}, "format": "json"}
    for _ in range(3):
        assert client.post(f"{API}/channels/", CHANNEL, **once).status_code == 201
    assert client.post(f"{API}/channels/", CHANNEL, format="json").status_code == 409
    assert client.post(f"{API}/channels/", {"kind": 5}, format="json").status_code == 400
    client.get(f"{API}/channels/")
    client.post(f"{API}/schedules/preview/", {}, format="json")

    assert [entry.operation for entry in entries(tenant)] == ["POST /channels/"]


def test_a_decision_is_recorded_with_the_status_before_and_after(
    engine: Engine, tenant: Tenant, api: Clients
) -> None:
    engine.serve(tenant)
    (activity,) = engine.submit(tenant, "qa", requires_approval=True)
    engine.drain()

    api("reviewer").post(f"{API}/activities/{activity}/approve/", {"notes": "Fine by me"}, format="json")

    (entry,) = entries(tenant)
    assert entry.operation == "POST /activities/{id}/approve/"
    assert entry.changes["status"] == ["awaiting_approval", "approved"]
    assert "Fine by me" not in json.dumps(entry.changes)


def test_the_entry_of_a_bulk_decision_says_what_was_decided(
    engine: Engine, tenant: Tenant, api: Clients
) -> None:
    engine.serve(tenant)
    first, second = engine.submit(tenant, "qa", requires_approval=True, count=2)
    engine.drain()
    items = [
        {"id": str(first), "decision": "approved", "notes": "Fine by me"},
        {"id": str(first), "decision": "rejected", "notes": "No."},
        {"id": str(second), "decision": "reject", "notes": "Shorter."},
    ]

    api("reviewer").post(f"{API}/inbox/decide/", {"items": items}, format="json")

    (entry,) = entries(tenant)
    assert entry.detail["decided"] == {str(first): "approve", str(second): "reject"}
    assert "Fine by me" not in json.dumps(entry.detail)


def test_refusals_leave_a_security_event_that_only_the_callers_tenant_sees(
    engine: Engine, tenant: Tenant, other_tenant: Tenant, api: Clients
) -> None:
    (theirs,) = engine.submit(other_tenant, "qa")
    viewer, admin = api("viewer", name="vic"), api("admin")

    assert admin.post(f"{API}/activities/{theirs}/cancel/", {}, format="json").status_code == 404
    assert admin.get(f"{API}/activities/{theirs}/").status_code == 404
    assert (
        viewer.post(f"{API}/activities/", {"name": "x", "agent_role": "qa"}, format="json").status_code == 403
    )

    entry_list = [
        (entry.operation, entry.outcome, entry.detail["status"], entry.object_id) for entry in entries(tenant)
    ]
    assert entry_list == [
        ("POST /activities/{id}/cancel/", "refused", 404, str(theirs)),
        ("GET /activities/{id}/", "refused", 404, str(theirs)),
        ("POST /activities/", "refused", 403, ""),
    ]
    assert entries(other_tenant) == []
    with tenant_scope(other_tenant.pk):
        assert Activity.objects.get().status == "created"


def test_trying_many_ids_does_not_fill_the_audit_trail(tenant: Tenant, api: Clients) -> None:
    client = api("viewer")

    for _ in range(80):
        client.get(f"{API}/activities/{uuid4()}/")

    assert 60 <= len(entries(tenant)) <= 65


def test_invalid_credentials_are_recorded_without_their_secret(tenant: Tenant) -> None:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION="Bearer orc_" + "x" * 43)

    assert client.get(f"{API}/activities/").status_code == 401

    with system_scope():
        (entry,) = AuditEntry.objects.filter(tenant=None)
    assert (entry.operation, entry.outcome, entry.actor_name) == ("token.refused", "failed", "orc_" + "x" * 8)


def test_admins_read_and_filter_their_audit_trail(tenant: Tenant, other_tenant: Tenant, api: Clients) -> None:
    client, theirs = api("admin", name="ci"), api("admin", tenant=other_tenant)
    first = client.post(f"{API}/channels/", CHANNEL, format="json").json()
    client.post(f"{API}/channels/", {**CHANNEL, "name": "B"}, format="json")
    client.delete(f"{API}/channels/{first['id']}/")
    theirs.post(f"{API}/channels/", CHANNEL, format="json")

    def numbers(**query: Any) -> list[int]:
        answer = client.get(f"{API}/audit/", query)
        assert answer.status_code == 200, answer.content
        return [entry["number"] for entry in answer.json()["results"]]

    assert numbers() == [3, 2, 1]
    assert numbers(operation="POST /channels/") == [2, 1]
    assert numbers(object=first["id"]) == [3, 1]
    assert numbers(actor="ci", outcome="done", object_kind="channels") == [3, 2, 1]
    assert numbers(since="2999-01-01T00:00:00Z") == []
    page = client.get(f"{API}/audit/", {"limit": 2}).json()
    assert [entry["number"] for entry in client.get(page["next"]).json()["results"]] == [1]
    assert client.get(f"{API}/audit/", {"who": "x"}).status_code == 400
    assert api("operator").get(f"{API}/audit/").status_code == 403
    assert client.post(f"{API}/audit/", {}, format="json").status_code == 405
    entry_read = client.get(f"{API}/audit/", {"outcome": "done"}).json()["results"][0]
    assert entry_read["actor"]["name"] == "ci"
    assert entry_read["object"] == {"kind": "channels", "id": first["id"]}


@pytest.mark.parametrize("forged", ["x\r\nPOST /everything/ admin", "a\u2028b", "\u202eevil"])
def test_line_breaks_in_requests_forge_no_entries(forged: str, tenant: Tenant, api: Clients) -> None:
    api("admin").post(f"{API}/channels/", {**CHANNEL, "kind": forged}, format="json")

    with tenant_scope(tenant.pk):
        for entry in AuditEntry.objects.all():
            assert forged not in json.dumps(entry.changes, ensure_ascii=False)
