"""The menu of the admin: its pages in groups, of which each person gets those that they may open.

Every page of the admin has it, so the HTML of each group is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.apps import apps
from django.conf import settings
from django.contrib import admin
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.urls import get_script_prefix, reverse
from django.utils.safestring import SafeString, mark_safe
from django.utils.text import capfirst


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """The entry of a page. Each request is asked whether it contains the entry."""

    icon: str
    title: str
    link: str
    is_allowed: Callable[[HttpRequest], bool] = lambda request: True


class Group:
    """Entries under a title, with which they can be hidden. Those without a title are always there, and lead to other places."""

    def __init__(self, title: str, *entries: Entry) -> None:
        self.title, self.entries = title, entries

    def render(self, request: HttpRequest) -> str:
        path, allowed = request.path, tuple(entry for entry in self.entries if entry.is_allowed(request))
        beginning = path if self.title else ""
        current = next(
            (each for each in allowed if path == each.link or beginning.startswith(each.link)), None
        )
        return _html_of(self.title, allowed, current) if allowed else ""


def render(request: HttpRequest) -> SafeString:
    """Return the menu for this request. Only the group of the current page is open."""
    return mark_safe("".join(group.render(request) for group in _groups(get_script_prefix())))  # noqa: S308  # from templates


@lru_cache(maxsize=1000)
def _html_of(title: str, entries: tuple[Entry, ...], current: Entry | None) -> str:
    return render_to_string("admin/menu_group.html", {"title": title, "entries": entries, "current": current})


def _page_of_superusers(title: str, icon: str, link: str) -> Entry:
    return Entry(icon, title, link, lambda request: bool(getattr(request.user, "is_superuser", False)))


def _page(icon: str, name: str, title: str = "") -> Entry:
    """Return the entry of the list of a model with this name, such as `agents_skill`, by default with the title of the list."""
    label, _, model_name = name.rpartition("_")
    model: Any = apps.get_model(label, model_name)
    return Entry(
        icon,
        title or capfirst(model._meta.verbose_name_plural),
        reverse(f"admin:{name}_changelist"),
        admin.site.get_model_admin(model).has_view_permission,
    )


@lru_cache(maxsize=100)
def _groups(prefix: str) -> list[Group]:
    """Return all groups. They are computed once for each prefix, with which all their addresses begin."""
    flower = settings.ORCHESTRATOR_FLOWER_URL
    return [
        Group(
            "",
            Entry("dashboard", "Dashboard", reverse("admin:index")),
            Entry("monitoring", "Console", reverse("console:home")),
            Entry("api", "API documentation", "/api/v1/docs/"),
            *([Entry("local_florist", "Flower", flower)] if flower else []),
        ),
        Group(
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
        Group(
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
        Group(
            "Alerts",
            _page("notification_important", "activities_alert"),
            _page("forward_to_inbox", "activities_alertdelivery"),
            _page("history", "tenants_event"),
            _page("webhook", "tenants_webhookendpoint"),
            _page("outbox", "tenants_webhookdelivery"),
            _page("contact_mail", "activities_notificationchannel"),
        ),
        Group(
            "Retention",
            _page("auto_delete", "tenants_retentionpolicy"),
            _page("cycle", "tenants_retentionpass"),
            _page("delete_history", "tenants_retentiontally"),
            _page("functions", "tenants_usagetotal"),
            _page("logout", "tenants_departedtenant"),
        ),
        Group(
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
        Group(
            "Schedules",
            _page("calendar_clock", "pipelines_schedule"),
            _page("event_available", "pipelines_scheduleexecution"),
            _page("checklist", "pipelines_schedulejob"),
            _page("history_toggle_off", "pipelines_firing"),
        ),
        Group(
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
        Group(
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
        Group(
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
