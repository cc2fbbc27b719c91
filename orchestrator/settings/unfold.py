"""The theme and the menu of the admin."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import get_script_prefix, reverse
from django.utils.functional import lazy
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


@lru_cache(maxsize=500)
def _computed_address(prefix: str, name: str, *args: str) -> str:
    return reverse(name, args=args)


def _current_address(name: str, *args: str) -> str:
    return _computed_address(get_script_prefix(), name, *args)


#: The lazy address of a page. It is computed once, because each page of the admin uses all of them twice.
_address = lazy(_current_address, str)


def _group(title: str, *items: dict[str, object]) -> dict[str, object]:
    return {"title": title, "separator": True, "collapsible": True, "items": list(items)}


def _page_of_superusers(title: str, icon: str, link: object) -> dict[str, object]:
    return {
        "title": title,
        "icon": icon,
        "link": link,
        "permission": lambda request: bool(getattr(request.user, "is_superuser", False)),
    }


def _model_of(name: str) -> Any:
    """Return the model with this name, such as `agents_skill`."""
    from django.apps import apps  # not available while settings are read

    label, _, model = name.rpartition("_")
    return apps.get_model(label, model)


def _name_of_records(model: str) -> str:
    return capfirst(_model_of(model)._meta.verbose_name_plural)


def _page(icon: str, model: str, title: str = "") -> dict[str, object]:
    """Return the entry of a model's list, by default with the title of this list."""

    def is_seen(request: HttpRequest) -> bool:
        from django.contrib import admin

        model_admin = admin.site.get_model_admin(_model_of(model))
        return bool(model_admin.has_view_permission(request))

    return {
        "title": title or lazy(_name_of_records, str)(model),
        "icon": icon,
        "link": _address(f"admin:{model}_changelist"),
        "permission": is_seen,
    }


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
        "navigation": [
            {
                "items": [
                    # Its URL is a prefix of all others, so without `active` it would always be highlighted.
                    {
                        "title": "Dashboard",
                        "icon": "dashboard",
                        "link": _address("admin:index"),
                        "active": lambda request: request.path == "/admin/",
                    },
                    {
                        "title": "Console",
                        "icon": "monitoring",
                        "link": _address("console:home"),
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
                    _address("admin:agents_platformconfig_change", "scheduler"),
                ),
                _page_of_superusers("Model providers", "hub", _address("admin:model-providers")),
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
                _page_of_superusers("Break the glass", "emergency", _address("admin:break-glass")),
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
        ],
    },
}
