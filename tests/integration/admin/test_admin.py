"""Who may enter the admin, that every page opens, and that rows of the engine cannot be changed there."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets
from django.contrib.auth.models import Permission, User
from django.test import Client

from activities.models import Activity
from agents.models import Skill
from pipelines.models import ActivityTemplate, Dataset, Deliverable, Pipeline, PipelineRun, Schedule
from tenants import tokens
from tenants.admin.bases import RecordAdmin
from tenants.admin.permissions import tenant_of
from tenants.context import system_scope, tenant_scope
from tenants.models import Channel, Membership, RetentionPolicy, Tenant
from tests.browsing import list_url, page_url
from tests.scheduling import make_schedule

pytestmark = pytest.mark.long

OURS = {"tenants", "agents", "activities", "pipelines"}
NOT_FOR_PEOPLE = {"ConfigurationChange"}  # because the audit trail shows who changed what


def test_every_model_of_the_project_is_in_the_admin() -> None:
    missing = [
        model.__name__
        for model in apps.get_models()
        if model._meta.app_label in OURS and not admin.site.is_registered(model)
    ]

    assert set(missing) == NOT_FOR_PEOPLE


def test_staff_with_a_membership_and_admins_of_a_tenant_may_enter(tenant: Tenant, client: Client) -> None:
    def person(name: str, role: str = "", **fields: Any) -> User:
        user = User.objects.create_user(name, password="a long password", **fields)
        if role:
            with tenant_scope(tenant.pk):
                Membership.objects.create(tenant=tenant, user=user, role=role)
        return user

    people = (
        (person("stranger", is_staff=True), 403),
        (person("member", "operator"), 403),
        (person("nobody"), 403),
        (person("staff", "viewer", is_staff=True), 200),
        (person("boss", "admin"), 200),
    )
    assert client.get("/admin/").status_code == 302

    for user, status in people:
        client.force_login(user)
        assert client.get("/admin/").status_code == status, user
        assert client.get(list_url(Activity)).status_code == status, user
        login = Client().post("/admin/login/", {"username": user.username, "password": "a long password"})
        assert login.status_code == (302 if status == 200 or user.is_staff else 200), user


def test_staff_with_every_permission_see_no_model(database: None) -> None:
    """The admin refuses them even without its middleware."""
    staff = User.objects.create_user("staff", is_staff=True)
    staff.user_permissions.set(Permission.objects.all())
    request = type("Request", (), {"user": staff, "method": "GET"})()

    visible = [
        model.__name__
        for model, model_admin in admin.site._registry.items()
        if model_admin.has_module_permission(request) or model_admin.has_view_permission(request)
    ]

    assert visible == []


def _all_rows() -> list[tuple[type, Any]]:
    with system_scope():
        return [(model, model._default_manager.first()) for model in admin.site._registry]


def test_every_page_of_a_row_can_be_opened(
    run: PipelineRun, failed: Activity, root: Client, tenant: Tenant
) -> None:
    """`test_answers_are_contained` opens the lists and the pages for new rows."""
    tokens.create(tenant, "viewer", "reader")
    opened = 0

    for model, row in _all_rows():
        if row is None:
            continue
        for page in (page_url(row), f"{list_url(model)}{row.pk}/history/"):
            assert root.get(page).status_code == 200, page
            opened += 1

    assert opened > 35


def test_a_viewer_can_open_the_page_of_each_row_and_save_none(
    run: PipelineRun, failed: Activity, tenant: Tenant, client: Client
) -> None:
    make_schedule(tenant)
    viewer = User.objects.create_user("viewer", is_staff=True)
    with tenant_scope(tenant.pk):
        Membership.objects.create(tenant=tenant, user=viewer, role="viewer")
        Skill.objects.create(tenant=tenant, key="tone", name="Tone", content="Plain.")
        ActivityTemplate.objects.create(tenant=tenant, key="brief", name="Brief")
        Channel.objects.create(tenant=tenant, kind="mail", name="Mail")
        Dataset.objects.create(tenant=tenant, name="clients", fields={"name": "string"})
        Deliverable.objects.create(tenant=tenant, key="blog", name="Blog", pipelines=["brief"])
        RetentionPolicy.objects.create(tenant=tenant, kind="alerts", days=30)
    client.force_login(viewer)
    index = client.get("/admin/").content.decode()
    opened = set()

    for model, row in _all_rows():
        if tenant_of(row) == tenant.pk and f'href="{list_url(model)}"' in index:
            page = client.get(page_url(row))
            assert page.status_code == 200, page_url(row)
            assert 'name="_save"' not in page.content.decode()
            opened.add(model)

    assert opened >= {
        Schedule,
        Pipeline,
        Skill,
        ActivityTemplate,
        Channel,
        Dataset,
        Deliverable,
        RetentionPolicy,
    }


def test_activities_can_be_filtered_by_situation(run: PipelineRun, failed: Activity, root: Client) -> None:
    for situation in ("queued", "running", "people", "trouble"):
        assert (
            root.get(list_url(Activity), {"situation": situation, "tenant": "acme", "role": "qa"}).status_code
            == 200
        )


def test_no_page_of_a_row_of_the_engine_has_a_secret_column() -> None:
    shown = {
        f"{model.__name__}.{name}"
        for model, model_admin in admin.site._registry.items()
        if isinstance(model_admin, RecordAdmin)
        for name in flatten_fieldsets(model_admin.get_fieldsets(None))
    }

    assert len(shown) > 300
    assert [
        name for name in shown if re.search("sealed|secret|public_key|IdempotentRequest.body", name)
    ] == []


def test_rows_of_the_engine_cannot_be_added_changed_or_deleted(
    run: PipelineRun, failed: Activity, root: Client
) -> None:
    owned = {
        "activity",
        "activityrun",
        "activityevent",
        "wake",
        "outputspool",
        "workerprocess",
        "pipelineversion",
        "pipelinerun",
        "steprun",
    }
    tried = set()

    for model, row in _all_rows():
        if model._meta.model_name in owned:  # type: ignore[attr-defined]
            tried.add(model._meta.model_name)  # type: ignore[attr-defined]
            assert root.get(f"{list_url(model)}add/").status_code == 403
            assert root.post(page_url(row), {"status": "done"}).status_code == 403
            assert root.post(f"{list_url(model)}{row.pk}/delete/", {"post": "yes"}).status_code == 403
            assert "delete_selected" not in root.get(list_url(model)).content.decode()

    assert tried == owned


def test_pages_load_nothing_from_other_hosts(root: Client, waiting: Activity) -> None:
    for page in ("/admin/", list_url(Activity), page_url(waiting), f"{list_url(Pipeline)}add/"):
        loaded = re.findall(
            r'<(?:script|link|img)[^>]+(?:src|href)="([^"]+)"', root.get(page).content.decode()
        )
        assert loaded
        assert [each for each in loaded if not each.startswith(("/", "data:"))] == []


def test_a_page_without_the_list_of_apps_does_not_build_it(
    root: Client, waiting: Activity, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    build = admin.site._build_app_dict
    monkeypatch.setattr(admin.site, "_build_app_dict", lambda *args: built.append("list") or build(*args))

    for address in (list_url(Activity), page_url(waiting)):
        assert root.get(address).status_code == 200

    assert built == []


def test_the_addresses_of_the_menu_are_computed_once(root: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    links = re.findall(r'href="(/admin/[^"]+/)"', root.get(list_url(Activity)).content.decode())

    monkeypatch.setattr("orchestrator.admin_menu.reverse", None)

    assert list_url(Pipeline) in links
    assert re.findall(r'href="(/admin/[^"]+/)"', root.get(list_url(Activity)).content.decode()) == links
