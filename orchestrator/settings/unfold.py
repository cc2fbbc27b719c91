"""The theme and the menu of the admin."""

from __future__ import annotations

import os
from functools import lru_cache

from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import get_script_prefix, reverse
from django.utils.functional import lazy

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


def _page(title: str, icon: str, model: str) -> dict[str, object]:
    label, _, name = model.rpartition("_")

    def is_seen(request: HttpRequest) -> bool:
        from django.apps import apps  # not available while settings are read
        from django.contrib import admin

        model_admin = admin.site.get_model_admin(apps.get_model(label, name))
        return bool(model_admin.has_view_permission(request))

    return {
        "title": title,
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
                _page("Activities", "task_alt", "activities_activity"),
                _page("Runs", "directions_run", "activities_activityrun"),
                _page("Wakes", "notifications_active", "activities_wake"),
                _page("Mailboxes", "inbox", "activities_mailbox"),
                _page("Mailbox messages", "mail", "activities_mailboxitem"),
                _page("Mailbox batches", "move_to_inbox", "activities_mailboxbatch"),
                _page("Subagents", "smart_toy", "activities_subagent"),
                _page("History", "history", "activities_activityevent"),
                _page("Pending outputs", "outbox", "activities_outputspool"),
                _page("Provider batches", "inventory_2", "activities_providerbatch"),
                _page("Batch items", "package_2", "activities_batchitem"),
                _page("Worker processes", "memory", "activities_workerprocess"),
            ),
            _group(
                "People and failures",
                _page("Approvals", "approval", "activities_approval"),
                _page("Approval links", "rebase_edit", "activities_approvallink"),
                _page("Votes", "how_to_vote", "activities_vote"),
                _page("Deadlines", "alarm", "activities_deadline"),
                _page("Tool calls", "construction", "activities_toolcall"),
                _page("Bulk jobs", "checklist", "activities_bulkjob"),
                _page("Dead letters", "dangerous", "activities_deadletter"),
                _page("Failures in a row", "trending_down", "activities_failuresinarow"),
                _page("Repeated submissions", "content_copy", "activities_repeatedsubmissions"),
                _page("Refused work", "block", "activities_turnedaway"),
                _page("Platform conditions", "monitor_heart", "activities_condition"),
            ),
            _group(
                "Alerts",
                _page("Alerts", "notification_important", "activities_alert"),
                _page("Deliveries", "forward_to_inbox", "activities_alertdelivery"),
                _page("Events", "history", "tenants_event"),
                _page("Webhooks", "webhook", "tenants_webhookendpoint"),
                _page("Webhook deliveries", "outbox", "tenants_webhookdelivery"),
                _page("Notification channels", "contact_mail", "activities_notificationchannel"),
            ),
            _group(
                "Retention",
                _page("Tenant policies", "auto_delete", "tenants_retentionpolicy"),
                _page("Passes", "cycle", "tenants_retentionpass"),
                _page("Deleted rows", "delete_history", "tenants_retentiontally"),
                _page("Usage totals", "functions", "tenants_usagetotal"),
                _page("Off-boarded tenants", "logout", "tenants_departedtenant"),
            ),
            _group(
                "Pipelines",
                _page("Pipelines", "account_tree", "pipelines_pipeline"),
                _page("Versions", "layers", "pipelines_pipelineversion"),
                _page("Pipeline runs", "play_circle", "pipelines_pipelinerun"),
                _page("Activity templates", "draft", "pipelines_activitytemplate"),
                _page("Datasets", "table", "pipelines_dataset"),
                _page("Dataset rows", "table_rows", "pipelines_datasetrow"),
                _page("Deliverables", "inventory_2", "pipelines_deliverable"),
                _page("Periods", "date_range", "pipelines_deliverableperiod"),
            ),
            _group(
                "Schedules",
                _page("Schedules", "calendar_clock", "pipelines_schedule"),
                _page("Executions", "event_available", "pipelines_scheduleexecution"),
                _page("Jobs", "checklist", "pipelines_schedulejob"),
                _page("Times", "history_toggle_off", "pipelines_firing"),
            ),
            _group(
                "Agents",
                _page("Agents", "smart_toy", "agents_agent"),
                _page("Deployments", "rocket_launch", "agents_agentversiondeployment"),
                _page("Tenant settings", "tune", "agents_agentconfig"),
                _page("Sessions", "forum", "agents_agentsession"),
                _page_of_superusers(
                    "Scheduling settings",
                    "settings",
                    _address("admin:agents_platformconfig_change", "scheduler"),
                ),
                _page_of_superusers("Model providers", "hub", _address("admin:model-providers")),
            ),
            _group(
                "Tenants and people",
                _page("Tenants", "apartment", "tenants_tenant"),
                _page("Plans", "sell", "tenants_plan"),
                _page("Members", "badge", "tenants_membership"),
                _page("API tokens", "key", "tenants_apitoken"),
                _page("Channels", "link", "tenants_channel"),
                _page("Budgets", "payments", "tenants_budget"),
                _page("Usage", "receipt_long", "tenants_usageentry"),
                _page("Reservations", "savings", "tenants_reservation"),
                _page("Waiting for budgets", "hourglass_empty", "tenants_budgetwait"),
                _page("Audit trail", "fact_check", "tenants_auditentry"),
                _page_of_superusers("Break the glass", "emergency", _address("admin:break-glass")),
                _page("Break-glass sessions", "policy", "tenants_breakglass"),
                _page("Users", "person", "auth_user"),
                _page("Second factors", "phonelink_lock", "tenants_secondfactor"),
                _page("Passkeys", "passkey", "tenants_passkey"),
                _page("Groups", "group", "auth_group"),
            ),
            _group(
                "Celery",
                _page("Periodic tasks", "schedule", "django_celery_beat_periodictask"),
                _page("Intervals", "update", "django_celery_beat_intervalschedule"),
                _page("Crontabs", "calendar_month", "django_celery_beat_crontabschedule"),
                _page("Fixed times", "event", "django_celery_beat_clockedschedule"),
                _page("Solar events", "wb_sunny", "django_celery_beat_solarschedule"),
                _page("Task results", "checklist", "django_celery_results_taskresult"),
                _page("Group results", "checklist_rtl", "django_celery_results_groupresult"),
                _page("Idempotent requests", "repeat_one", "tenants_idempotentrequest"),
            ),
        ],
    },
}
