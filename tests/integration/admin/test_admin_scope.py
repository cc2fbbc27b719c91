"""Users of the admin see the tenants of their memberships. Superusers see other tenants only with break-glass access."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.db import connections
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from django_celery_beat.models import PeriodicTask
from django_celery_results.models import TaskResult

from activities.models import Activity
from agents.models import Agent, AgentConfig
from pipelines import versions
from pipelines.models import Pipeline
from tenants import admin_scope as tenant_admin_scope
from tenants import break_glass, tokens
from tenants.admin.permissions import is_owned
from tenants.context import ADMIN, admin_scope, system_scope, tenant_scope
from tenants.exceptions import TenantNotVisible
from tenants.models import ApiToken, Channel, Membership, Tenant
from tenants.models.audit import AuditEntry, BreakGlass
from tests.api_objects import create_api_objects
from tests.browsing import BRIEF, list_url, page_url, run_action, visible_text
from tests.cases import in_one_test
from tests.engine import Engine
from tests.superusers import browser_of

pytestmark = pytest.mark.long

REASON = "Ticket of the customer: their pipeline stands still."


def _member(tenant: Tenant, name: str, role: str = "admin", **fields: Any) -> User:
    user, _ = User.objects.get_or_create(username=name, defaults={"is_staff": True, **fields})
    with tenant_scope(tenant.pk):
        Membership.objects.create(tenant=tenant, user=user, role=role)
    return user


@pytest.fixture
def foreign_rows(engine: Engine, tenant: Tenant, other_tenant: Tenant) -> list[Any]:
    """Rows of every model in the other tenant, named "zebra"; rows named "lion" exist in the own tenant."""
    rows: list[Any] = []
    for owner, word in ((other_tenant, "zebra"), (tenant, "lion")):
        engine.serve(owner)
        (activity,) = engine.submit(owner, "qa", requires_approval=True)
        engine.drain()
        with tenant_scope(owner.pk):
            Activity.objects.filter(pk=activity).update(name=f"{word} work")
        versions.save(owner.pk, {**BRIEF, "key": f"{word}-brief", "name": f"{word} brief"}, actor="test")
        tokens.create(owner, "viewer", f"{word} token")
        with tenant_scope(owner.pk):
            Channel.objects.create(tenant=owner, kind="ads", name=f"{word} channel")
        if word == "zebra":
            with system_scope():
                of_them = {"tenant_id": owner.pk}
                for model in admin.site._registry:
                    if is_owned(model):
                        rows += list(model._default_manager.filter(**of_them)[:2])
    return rows


@pytest.fixture
def staff(foreign_rows: list[Any], tenant: Tenant) -> Client:
    """An admin of the own tenant with every permission of Django."""
    user = _member(tenant, "mia")
    user.user_permissions.set(Permission.objects.all())
    return browser_of(user)


@pytest.fixture
def superuser(foreign_rows: list[Any]) -> Client:
    """A superuser without memberships and without break-glass access."""
    return browser_of(User.objects.create_superuser("root", "root@example.com", "a long password"))


def _shows_nothing(
    browser: Client, model: type, query: dict[str, str], other: Tenant, menu: Sequence[str] = ()
) -> bool:
    """Whether a list, which must open if it is in the menu, shows nothing of the other tenant."""
    answer = browser.get(list_url(model), query, follow=True)
    assert answer.status_code in ((200,) if list_url(model) in menu else (200, 403)), (model, query)
    content = answer.content.decode()
    for part in (
        f'value="{other.pk}"',
        f"={other.pk}",
        f"%3D{other.pk}",
    ):  # because the page repeats the filter of the query
        content = content.replace(part, "")
    return not re.search("zebra[ -]", content) and str(other.pk) not in content


def test_the_menu_can_be_opened_and_lists_searches_and_filters_show_nothing_of_another_tenant(
    staff: Client, other_tenant: Tenant
) -> None:
    owned = [model for model in admin.site._registry if is_owned(model)]
    queries = ({"q": "zebra"}, {"tenant": other_tenant.slug}, {"tenant__id__exact": str(other_tenant.pk)})
    requests = [(model, {}) for model in owned] + [
        (model, query) for model in (Activity, Pipeline, ApiToken) for query in queries
    ]

    menu = re.findall(r'href="(/admin/[a-z_]+/[a-z_]+/)"', staff.get("/admin/").content.decode())

    assert len(owned) > 20
    assert list_url(Activity) in menu
    assert [each for each in requests if not _shows_nothing(staff, *each, other_tenant, menu)] == []
    others = set(menu) - set(map(list_url, owned))
    assert {staff.get(link).status_code for link in others} <= {200}, others
    assert "lion work" in visible_text(staff.get(list_url(Activity)))


def test_a_row_of_another_tenant_is_answered_as_a_row_that_does_not_exist(
    staff: Client, engine: Engine, api: Any, other_tenant: Tenant
) -> None:
    create_api_objects(engine, other_tenant, api("admin", other_tenant))
    rows = {row._meta.model: row for row in (*_rows_of(other_tenant), other_tenant)}
    differences = []
    statuses = set()

    for model, row in rows.items():
        absent = uuid4() if isinstance(row.pk, UUID) else 2**30
        for address in _addresses_of_rows(model):
            for method in (staff.get, staff.post):
                theirs, nobodys = (_answer_for(pk, staff, method, address) for pk in (row.pk, absent))
                statuses.add(theirs[0])
                if theirs != nobodys:
                    differences.append((address, method.__name__, theirs, nobodys))

    assert len(rows) > 15
    assert not differences, "\n".join(map(str, differences))
    assert statuses <= {302, 403, 404}


def _rows_of(tenant: Tenant) -> Iterator[Any]:
    """Yield a row of each model of tenants. The tables of the platform are for superusers only."""
    for model in filter(is_owned, admin.site._registry):
        if row := model._base_manager.using("system").filter(tenant_id=tenant.pk).first():
            yield row


def _addresses_of_rows(model: type[Any]) -> Iterator[str]:
    """Yield the addresses below a row's page, with <id> in place of its id."""
    for pattern in admin.site._registry[model].get_urls():
        route = str(pattern.pattern)
        if "<path:object_id>" in route:
            yield list_url(model) + route.replace("<path:object_id>", "<id>")


def _answer_for(pk: Any, browser: Client, method: Any, address: str) -> tuple[Any, ...]:
    """Return what tells one answer from another, without the id."""
    browser.cookies.pop("messages", None)
    answer = method(address.replace("<id>", str(pk)), {"post": "yes"})
    messages = [str(message) for message in get_messages(answer.wsgi_request)]
    page = answer.headers["Location"] if answer.status_code == 302 else visible_text(answer)
    return answer.status_code, *(re.sub(rf"\b{pk}\b", "<id>", text) for text in (page, *messages))


def test_actions_with_ids_of_another_tenant_change_nothing(staff: Client, other_tenant: Tenant) -> None:
    with system_scope():
        activity = Activity.objects.get(name="zebra work")
        token = ApiToken.objects.get(tenant=other_tenant)
        pipeline = Pipeline.objects.get(tenant=other_tenant)
    run_action(staff, ApiToken, "revoke_selected", token, confirmed="1")
    run_action(staff, Activity, "approve_selected", activity, confirmed="1")
    run_action(staff, Pipeline, "disable_selected", pipeline)
    staff.post(f"/admin/tenants/apitoken/{token.pk}/revoke/", {"confirmed": "1"})
    staff.post(f"/admin/tenants/tenant/{other_tenant.pk}/create-token/", {"name": "x", "role": "admin"})

    with system_scope():
        assert ApiToken.objects.get(tenant=other_tenant).revoked_at is None
        assert Activity.objects.get(pk=activity.pk).status == activity.status
        assert Pipeline.objects.get(pk=pipeline.pk).enabled
        assert not ApiToken.objects.filter(name="x").exists()


def test_choices_and_autocomplete_offer_own_tenants_only_and_no_users(
    staff: Client, tenant: Tenant, other_tenant: Tenant
) -> None:
    def choices(app: str, model: str, field: str) -> Any:
        query = {"app_label": app, "model_name": model, "field_name": field, "term": ""}
        return staff.get(reverse("admin:autocomplete"), query)

    tenants = json.loads(choices("pipelines", "pipeline", "tenant").content)["results"]
    assert [each["id"] for each in tenants] == [str(tenant.pk)]
    assert choices("tenants", "membership", "user").status_code == 403
    form = staff.get(f"{list_url(Channel)}add/").content.decode()
    assert other_tenant.slug not in form
    assert str(other_tenant.pk) not in form


def test_autocomplete_finds_nothing_for_a_text_that_postgresql_refuses(staff: Client) -> None:
    query = {"app_label": "pipelines", "model_name": "pipeline", "field_name": "tenant", "term": "a\x00"}

    answer = staff.get(reverse("admin:autocomplete"), query)

    assert (answer.status_code, answer.json()["results"]) == (200, [])


@in_one_test("model", [Channel, Pipeline, AgentConfig])
def test_a_form_with_the_id_of_another_tenant_creates_nothing_there(
    model: Any, staff: Client, other_tenant: Tenant
) -> None:
    with system_scope():
        before = model.objects.filter(tenant=other_tenant).count()
    sent = {"tenant": str(other_tenant.pk), "kind": "ads", "name": "forged", "details": "{}", "agent": "dev", "enabled": "on",
            "retry": "{}", "rate": "{}", "definition": json.dumps({**BRIEF, "key": "forged"})}  # fmt: skip

    answer = staff.post(f"{list_url(model)}add/", sent)

    assert answer.status_code in (200, 403)
    with system_scope():
        assert model.objects.filter(tenant=other_tenant).count() == before


def test_checking_a_definition_reveals_nothing_of_another_tenant(staff: Client, other_tenant: Tenant) -> None:
    checked = staff.post(
        "/admin/pipelines/pipeline/check/", {"text": json.dumps(BRIEF), "tenant": str(other_tenant.pk)}
    )

    assert checked.json()["templates"] == []
    assert checked.json()["missing"].startswith("Choose the tenant")


def test_a_viewer_cannot_change_anything(foreign_rows: list[Any], tenant: Tenant) -> None:
    viewer = browser_of(_member(tenant, "vic", role="viewer"))
    with tenant_scope(tenant.pk):
        channel, token = Channel.objects.get(), ApiToken.objects.get(name="lion token")

    assert viewer.get(page_url(channel)).status_code == 200
    assert (
        viewer.post(page_url(channel), {"kind": "ads", "name": "renamed", "details": "{}"}).status_code == 403
    )
    assert (
        viewer.post(f"{list_url(Channel)}add/", {"kind": "x", "name": "y", "details": "{}"}).status_code
        == 403
    )
    run_action(viewer, ApiToken, "revoke_selected", token, confirmed="1")

    with tenant_scope(tenant.pk):
        assert Channel.objects.get().name == "lion channel"
        assert ApiToken.objects.get(pk=token.pk).revoked_at is None


def test_an_ended_membership_takes_effect_on_the_next_request(staff: Client, tenant: Tenant) -> None:
    assert staff.get(list_url(Activity)).status_code == 200

    with tenant_scope(tenant.pk):
        Membership.objects.all().delete()

    assert staff.get(list_url(Activity)).status_code == 403


@in_one_test("model", [PeriodicTask, TaskResult, Agent, User, BreakGlass])
def test_tables_of_the_platform_are_for_superusers_only(model: Any, staff: Client, superuser: Client) -> None:
    assert staff.get(list_url(model)).status_code == 403
    assert staff.get(f"{list_url(model)}add/").status_code == 403
    assert superuser.get(list_url(model)).status_code == 200


def test_a_superuser_sees_the_tenants_but_not_their_rows(superuser: Client, other_tenant: Tenant) -> None:
    assert "globex" in visible_text(superuser.get(list_url(Tenant)))
    for model in (Activity, Pipeline, ApiToken, Channel, AuditEntry, Membership):
        answer = superuser.get(list_url(model))
        assert answer.status_code == 200
        assert "zebra" not in visible_text(answer), model
        assert "lion" not in visible_text(answer), model
    refused = superuser.post(
        f"/admin/tenants/tenant/{other_tenant.pk}/create-token/", {"name": "x", "role": "admin"}
    )
    assert refused.status_code == 403


def test_a_superuser_manages_tenants_and_users_without_break_glass_access(
    superuser: Client, other_tenant: Tenant
) -> None:
    fields = {"slug": "hooli", "name": "Hooli", "is_active": "on", "weight": "2", "timezone": "UTC"}
    assert superuser.post(f"{list_url(Tenant)}add/", fields).status_code == 302
    assert superuser.post(page_url(other_tenant), {**fields, "weight": "7"}).status_code == 302
    person = {
        "username": "ann",
        "usable_password": "true",
        "password1": "a long enough one",
        "password2": "a long enough one",
    }
    assert superuser.post(f"{list_url(User)}add/", person).status_code == 302
    assert superuser.get(page_url(User.objects.get(username="ann"))).status_code == 200

    with system_scope():
        assert Tenant.objects.get(slug="globex").weight == 7
        entries = AuditEntry.objects.filter(actor_name="root").order_by("number")
        assert [(entry.operation, entry.tenant_id) for entry in entries] == [
            ("admin tenants.tenant add", None),
            ("admin tenants.tenant change", None),
            ("admin auth.user add", None),
        ]
        assert "a long enough one" not in json.dumps([entry.changes for entry in entries])


def test_break_glass_access_opens_one_tenant_for_an_hour_and_is_audited(
    superuser: Client, tenant: Tenant, other_tenant: Tenant
) -> None:
    address = reverse("admin:break-glass")
    for invalid in (
        {"tenant": "globex", "reason": "x"},
        {"tenant": "nobody", "reason": REASON},
        {"reason": REASON},
    ):
        assert superuser.post(address, invalid).status_code == 200
    assert superuser.post(address, {"tenant": "globex", "reason": REASON}).status_code == 302

    page = superuser.get(list_url(Activity))
    assert "zebra work" in visible_text(page)
    assert "lion" not in visible_text(page)
    assert "Break-glass access: you can see the tenant globex until" in visible_text(page)
    with system_scope():
        channel, glass = Channel.objects.get(tenant=other_tenant), BreakGlass.objects.get()
    assert glass.expires_at - glass.opened_at <= timedelta(seconds=3601)
    superuser.post(page_url(channel), {"kind": "ads", "name": "renamed", "details": "{}"})
    superuser.post(address, {"end": str(glass.pk)})

    assert "zebra" not in visible_text(superuser.get(list_url(Activity)))
    with tenant_scope(other_tenant.pk):
        entries = list(AuditEntry.objects.filter(actor_name="root").order_by("number"))
        assert Channel.objects.get().name == "renamed"
    assert [(entry.operation, entry.break_glass_id) for entry in entries] == [
        ("break_glass.opened", glass.pk),
        ("admin tenants.channel change", glass.pk),
        ("break_glass.ended", glass.pk),
    ]
    assert entries[0].detail["reason"] == REASON
    assert entries[1].changes["name"] == ["zebra channel", "renamed"]


def test_expired_break_glass_access_shows_nothing_and_its_end_is_audited(
    superuser: Client, other_tenant: Tenant
) -> None:
    superuser.post(reverse("admin:break-glass"), {"all_tenants": "on", "reason": REASON})
    assert "zebra work" in visible_text(superuser.get(list_url(Activity)))

    with system_scope():
        BreakGlass.objects.update(expires_at=timezone.now())

    assert "zebra" not in visible_text(superuser.get(list_url(Activity)))
    with system_scope():
        platform = (
            AuditEntry.objects.filter(tenant=None).order_by("number").values_list("operation", flat=True)
        )
        assert list(platform)[-2:] == ["break_glass.opened", "break_glass.expired"]


def test_only_superusers_open_break_glass_access_and_only_the_owner_ends_it(
    staff: Client, superuser: Client
) -> None:
    assert (
        staff.post(reverse("admin:break-glass"), {"all_tenants": "on", "reason": REASON}).status_code == 403
    )
    mia, root = User.objects.get(username="mia"), User.objects.get(username="root")
    with pytest.raises(break_glass.GlassRefused):
        break_glass.open_for(mia, "", REASON)
    glass = break_glass.open_for(root, "", REASON)
    assert not break_glass.end(mia, glass.pk)
    assert tenant_admin_scope.of_user(root).everything


def test_the_database_enforces_the_scope_of_the_admin(
    foreign_rows: list[Any], tenant: Tenant, other_tenant: Tenant
) -> None:
    with admin_scope(reads={tenant.pk}, writes=(), platform=False):
        assert {row.tenant_id for row in Activity.objects.all()} == {tenant.pk}
        assert Channel.objects.update(name="x") == 0
        with pytest.raises(TenantNotVisible), tenant_scope(other_tenant.pk):
            pass
    with connections[ADMIN].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM activities_activity")
        assert cursor.fetchone() == (0,)


def test_staff_cannot_create_a_token_for_the_platform(tenant: Tenant, root: Client, staff: Client) -> None:
    fields = {"name": "wide", "role": "admin", "platform": "on"}

    staff.post(f"/admin/tenants/tenant/{tenant.pk}/create-token/", fields)
    with system_scope():
        assert not ApiToken.objects.filter(name="wide", platform=True).exists()

    root.post(f"/admin/tenants/tenant/{tenant.pk}/create-token/", fields)
    with system_scope():
        assert ApiToken.objects.filter(name="wide", platform=True).count() == 1


def test_an_admin_of_a_tenant_without_staff_status_sees_that_tenant_only(
    foreign_rows: list[Any], tenant: Tenant, other_tenant: Tenant
) -> None:
    """They are an operator of the other tenant, whose rows they see in the console only."""
    boss = _member(tenant, "boss", is_staff=False)
    _member(other_tenant, "boss", role="operator")
    browser = browser_of(boss)

    assert "lion work" in visible_text(browser.get(list_url(Activity)))
    shown = [
        model
        for model in (Activity, Pipeline, ApiToken, Channel)
        if not _shows_nothing(browser, model, {}, other_tenant)
    ]
    assert shown == []
    for model in (PeriodicTask, Agent, User):
        assert browser.get(list_url(model)).status_code == 403
    assert 'href="/admin/"' in browser.get(f"/?tenant={tenant.slug}").content.decode()
    assert 'href="/admin/"' not in browser.get(f"/?tenant={other_tenant.slug}").content.decode()


@pytest.mark.parametrize("is_staff", [True, False])
@pytest.mark.parametrize("role", ["admin", "viewer"])
def test_the_console_links_the_admin_for_those_who_may_enter_it(
    tenant: Tenant, role: str, is_staff: bool
) -> None:
    browser = browser_of(_member(tenant, "vic", role, is_staff=is_staff))

    may_enter = browser.get("/admin/").status_code == 200

    assert may_enter == (is_staff or role == "admin")
    assert ('href="/admin/"' in browser.get("/").content.decode()) == may_enter


def test_changes_by_an_admin_of_a_tenant_are_in_its_audit_trail(
    foreign_rows: list[Any], tenant: Tenant
) -> None:
    browser = browser_of(_member(tenant, "boss", is_staff=False))
    with tenant_scope(tenant.pk):
        channel = Channel.objects.get()

    browser.post(page_url(channel), {"kind": "ads", "name": "renamed", "details": "{}"})

    with tenant_scope(tenant.pk):
        entry = AuditEntry.objects.filter(operation="admin tenants.channel change").get()
    assert (entry.actor_name, entry.changes["name"]) == ("boss", ["lion channel", "renamed"])


def test_an_admin_of_a_tenant_cannot_change_memberships_in_the_admin(
    foreign_rows: list[Any], tenant: Tenant
) -> None:
    boss = _member(tenant, "boss", is_staff=False)
    browser = browser_of(boss)
    with tenant_scope(tenant.pk):
        own = Membership.objects.get(user=boss)

    assert browser.get(page_url(own)).status_code == 200
    assert browser.post(page_url(own), {"role": "viewer", "human_roles": ""}).status_code == 403
    assert browser.post(f"{list_url(Membership)}{own.pk}/delete/", {"post": "yes"}).status_code == 403

    with tenant_scope(tenant.pk):
        assert Membership.objects.get(user=boss).role == "admin"
