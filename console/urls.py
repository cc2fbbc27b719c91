"""URLs of the console. Include them before the admin, whose catch-all would match the last two."""

from __future__ import annotations

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import path, re_path
from django.views.generic import RedirectView

from console import (
    agents,
    audit,
    dead_letters,
    live,
    overview,
    pipelines,
    queues,
    runs,
    schedules,
    second_factor,
    settings,
    usage,
    workers,
)
from console.activities import bulk, detail, listing
from console.content_security import send_policy_with_scripts
from console.inbox import slack
from console.inbox import views as inbox
from console.saved_views import every as saved_views

app_name = "console"
urlpatterns = [
    path("", overview.home, name="home"),
    path("tenants/", overview.tenants, name="tenants"),
    path("live/", live.stream, name="stream"),
    path("views/", saved_views, name="saved_views"),
    path("activities/", listing.list_activities, name="activities"),
    path("activities/new/", listing.new, name="activity_new"),
    path("activities/bulk/", bulk.many, name="activities_bulk"),
    path("activities/bulk/<uuid:job_id>/", bulk.job, name="activities_bulk_job"),
    path("activities/bulk/<uuid:job_id>/stop/", bulk.stop_job, name="activities_bulk_stop"),
    path("activities/<uuid:activity_id>/", detail.one, name="activity"),
    path("activities/<uuid:activity_id>/runs/<uuid:run_id>/log/", detail.show_full_log, name="activity_log"),
    path("activities/<uuid:activity_id>/texts/", detail.both_texts, name="activity_texts"),
    # Longer addresses come first, because a key matches any path: only the API restricts its characters.
    path("pipelines/", pipelines.every, name="pipelines"),
    path("pipelines/<path:key>/start/", pipelines.start, name="pipeline_start"),
    path("pipelines/<path:key>/copy/", pipelines.copy, name="pipeline_copy"),
    path("pipelines/<path:key>/", pipelines.one, name="pipeline"),
    path("runs/", runs.list_runs, name="runs"),
    path("runs/<uuid:run_id>/", runs.one, name="run"),
    path("runs/<uuid:run_id>/replay/", runs.replay, name="run_replay"),
    path("inbox/", inbox.list_items, name="inbox"),
    path("inbox/approve/", inbox.approve, name="inbox_approve"),
    path("inbox/undo/", inbox.take_back, name="inbox_undo"),
    path("slack/", slack.decide, name="slack"),
    path("inbox/gone/", inbox.show_gone, name="inbox_gone"),
    path("inbox/back/", inbox.bring_back, name="inbox_back"),
    path("inbox/<uuid:item_id>/", inbox.show_item, name="inbox_item"),
    path("queues/", queues.every, name="queues"),
    path("queues/<slug:role>/", queues.one, name="queue"),
    path("workers/", workers.every, name="workers"),
    path("dead-letters/", dead_letters.every, name="dead_letters"),
    path("dead-letters/<slug:fingerprint>/", dead_letters.show_similar, name="dead_letters_alike"),
    path("schedules/", schedules.every, name="schedules"),
    path("schedules/try/", schedules.trial, name="schedules_try"),
    path("schedules/new/", schedules.new, name="schedules_new"),
    path("schedules/words/", schedules.words, name="schedules_words"),
    path("schedules/<uuid:schedule_id>/", schedules.one, name="schedule"),
    path("schedules/<uuid:schedule_id>/change/", schedules.change, name="schedule_change"),
    path("agents/", agents.every, name="agents"),
    path("agents/<slug:role>/", agents.one, name="agent"),
    path("usage/", usage.show_usage, name="usage"),
    path("usage/export/<slug:what>/", usage.export, name="usage_export"),
    path("audit/", audit.show_trail, name="audit"),
    path("audit/export/", audit.export, name="audit_export"),
    path("settings/", settings.members, name="settings"),
    path("settings/tokens/", settings.tokens, name="settings_tokens"),
    path("settings/<slug:key>/", settings.collection, name="settings_collection"),
    path("settings/<slug:key>/<uuid:item_id>/", settings.item, name="settings_item"),
    path(
        "login/",
        send_policy_with_scripts(
            LoginView.as_view(
                template_name="console/login.html", redirect_authenticated_user=True, next_page="console:home"
            )
        ),
        name="login",
    ),
    path("second-factor/", send_policy_with_scripts(second_factor.page), name="second_factor"),
    path("logout/", LogoutView.as_view(next_page="console:login"), name="logout"),
    # Short addresses of admin pages, with and without the slash.
    *(
        re_path(
            rf"^admin/scheduler/{name}s/?$",
            RedirectView.as_view(pattern_name=f"admin:pipelines_{name}_changelist", query_string=True),
        )
        for name in ("schedule", "pipeline")
    ),
]
