"""The theme and the menu of the admin."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

from django.templatetags.static import static
from django.urls import get_script_prefix, reverse
from django.utils.text import capfirst

# URL of the links to Flower. On one machine the local one; in production that of its proxy, or no link.
ORCHESTRATOR_FLOWER_URL = os.environ.get(
    "FLOWER_URL",
    ""
    if os.environ.get("ORCHESTRATOR_PUBLIC_URL")
    else f"http://127.0.0.1:{os.environ.get('FLOWER_PORT') or 5555}",
)

FORMAT_MODULE_PATH = "orchestrator.formats"


_BLUE = {
    "50": "#eef4ff",
    "100": "#dce8ff",
    "200": "#bcd3ff",
    "300": "#93b8ff",
    "400": "#79a8ff",
    "500": "#4a7fe6",
    "600": "#1f57c3",
    "700": "#1a49a5",
    "800": "#183e86",
    "900": "#18366f",
    "950": "#112246",
}


def _group(title: str, *items: dict[str, object]) -> dict[str, object]:
    return {"title": title, "separator": True, "collapsible": True, "items": list(items)}


def _page_of_superusers(title: str, icon: str, link: object) -> dict[str, object]:
    return {
        "title": title,
        "icon": icon,
        "link": link,
        "permission": lambda request: bool(getattr(request.user, "is_superuser", False)),
    }


def _page(icon: str, name: str, title: str = "") -> dict[str, object]:
    """Return the entry of the list of a model with this name, such as `agents_skill`, by default with the title of the list."""
    from django.apps import apps  # not available while settings are read
    from django.contrib import admin

    label, _, model_name = name.rpartition("_")
    model: Any = apps.get_model(label, model_name)
    return {
        "title": title or capfirst(model._meta.verbose_name_plural),
        "icon": icon,
        "link": reverse(f"admin:{name}_changelist"),
        "permission": lambda request: bool(admin.site.get_model_admin(model).has_view_permission(request)),
    }


@lru_cache(maxsize=100)
def _menu(prefix: str) -> list[dict[str, object]]:
    """Return the menu, which each page of the admin has. It is computed once for each prefix, with which all its addresses begin."""
    return [
        {
            "items": [
                # Its URL is a prefix of all others, so without `active` it would always be highlighted.
                {
                    "title": "Dashboard",
                    "icon": "dashboard",
                    "link": reverse("admin:index"),
                    "active": lambda request: request.path == "/admin/",
                },
                {
                    "title": "Console",
                    "icon": "monitoring",
                    "link": reverse("console:home"),
                    "active": lambda request: False,
                },
                {"title": "API documentation", "icon": "api", "link": "/api/v1/docs/"},
                *(
                    [{"title": "Flower", "icon": "local_florist", "link": ORCHESTRATOR_FLOWER_URL}]
                    if ORCHESTRATOR_FLOWER_URL
                    else []
                ),
            ]
        },
        _group(
            "Work",
            _page("task_alt", "activities_activity"),
            _page("directions_run", "activities_activityrun"),
            _page("notifications_active", "activities_wake"),
            _page("inbox", "activities_mailbox"),
            _page("mail", "activities_mailboxitem"),
            _page("move_to_inbox", "activities_mailboxbatch"),
            _page("smart_toy", "activities_subagent"),
            _page("history", "activities_activityevent"),
            _page("outbox", "activities_outputspool"),
            _page("inventory_2", "activities_providerbatch"),
            _page("package_2", "activities_batchitem"),
            _page("memory", "activities_workerprocess"),
            _page("pause_circle", "tenants_pause"),
        ),
        _group(
            "People and failures",
            _page("approval", "activities_approval"),
            _page("rebase_edit", "activities_approvallink"),
            _page("how_to_vote", "activities_vote"),
            _page("alarm", "activities_deadline"),
            _page("construction", "activities_toolcall"),
            _page("checklist", "activities_bulkjob"),
            _page("dangerous", "activities_deadletter"),
            _page("trending_down", "activities_failuresinarow"),
            _page("content_copy", "activities_repeatedsubmissions"),
            _page("block", "activities_turnedaway"),
            _page("monitor_heart", "activities_condition"),
        ),
        _group(
            "Alerts",
            _page("notification_important", "activities_alert"),
            _page("forward_to_inbox", "activities_alertdelivery"),
            _page("history", "tenants_event"),
            _page("webhook", "tenants_webhookendpoint"),
            _page("outbox", "tenants_webhookdelivery"),
            _page("contact_mail", "activities_notificationchannel"),
        ),
        _group(
            "Retention",
            _page("auto_delete", "tenants_retentionpolicy"),
            _page("cycle", "tenants_retentionpass"),
            _page("delete_history", "tenants_retentiontally"),
            _page("functions", "tenants_usagetotal"),
            _page("logout", "tenants_departedtenant"),
        ),
        _group(
            "Pipelines",
            _page("account_tree", "pipelines_pipeline"),
            _page("layers", "pipelines_pipelineversion"),
            _page("play_circle", "pipelines_pipelinerun"),
            _page("draft", "pipelines_activitytemplate"),
            _page("table", "pipelines_dataset"),
            _page("table_rows", "pipelines_datasetrow"),
            _page("inventory_2", "pipelines_deliverable"),
            _page("date_range", "pipelines_deliverableperiod"),
        ),
        _group(
            "Schedules",
            _page("calendar_clock", "pipelines_schedule"),
            _page("event_available", "pipelines_scheduleexecution"),
            _page("checklist", "pipelines_schedulejob"),
            _page("history_toggle_off", "pipelines_firing"),
        ),
        _group(
            "Agents",
            _page("smart_toy", "agents_agent"),
            _page("rocket_launch", "agents_agentversiondeployment"),
            _page("tune", "agents_agentconfig"),
            _page("forum", "agents_agentsession"),
            _page("school", "agents_skill"),
            _page_of_superusers(
                "Scheduling settings",
                "settings",
                reverse("admin:agents_platformconfig_change", args=["scheduler"]),
            ),
            _page_of_superusers("Model providers", "hub", reverse("admin:model-providers")),
        ),
        _group(
            "Tenants and people",
            _page("apartment", "tenants_tenant"),
            _page("sell", "tenants_plan"),
            _page("badge", "tenants_membership"),
            _page("key", "tenants_apitoken"),
            _page("link", "tenants_channel"),
            _page("payments", "tenants_budget"),
            _page("receipt_long", "tenants_usageentry"),
            _page("savings", "tenants_reservation"),
            _page("hourglass_empty", "tenants_budgetwait"),
            _page("fact_check", "tenants_auditentry"),
            _page_of_superusers("Break the glass", "emergency", reverse("admin:break-glass")),
            _page("policy", "tenants_breakglass"),
            _page("person", "auth_user"),
            _page("phonelink_lock", "tenants_secondfactor"),
            _page("passkey", "tenants_passkey"),
            _page("group", "auth_group"),
        ),
        _group(
            "Celery",
            _page("schedule", "django_celery_beat_periodictask"),
            _page("update", "django_celery_beat_intervalschedule"),
            _page("calendar_month", "django_celery_beat_crontabschedule"),
            _page("event", "django_celery_beat_clockedschedule", "Fixed times"),
            _page("wb_sunny", "django_celery_beat_solarschedule"),
            _page("checklist", "django_celery_results_taskresult"),
            _page("checklist_rtl", "django_celery_results_groupresult"),
            _page("repeat_one", "tenants_idempotentrequest"),
        ),
    ]


UNFOLD = {
    "SITE_TITLE": "Orchestrator",
    "SITE_HEADER": "Orchestrator",
    "SITE_SUBHEADER": "Platform administration",
    "SITE_URL": "/",
    "SITE_ICON": lambda request: static("console/icon.svg"),
    "SITE_FAVICONS": [
        {"rel": "icon", "type": "image/svg+xml", "href": lambda request: static("console/icon.svg")}
    ],
    "SHOW_HISTORY": True,
    "DASHBOARD_CALLBACK": "console.overview.fill",
    "SHOW_VIEW_ON_SITE": False,
    "BORDER_RADIUS": "6px",
    "STYLES": [lambda request: static("console/admin.css")],
    # The blue of the console.
    "COLORS": {"primary": _BLUE},
    "SIDEBAR": {
        "show_search": True,
        "show_all_applications": False,
        "navigation": lambda request: _menu(get_script_prefix()),
    },
}
