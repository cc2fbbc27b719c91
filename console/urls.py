"""Addresses of the console. To be included before the admin, whose own catch-all would answer for the last two."""

from __future__ import annotations

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import include, path, re_path

from console import views
from console.containment import contained_with_scripts
from console.inbox.undo import undo
from console.saved_views.views import every as saved_views
from console.stream import stream

from .navigation import Signpost

app_name = "console"
urlpatterns = [
    path("", views.home, name="home"),
    path("tenants/", views.tenants, name="tenants"),
    path("live/", stream, name="stream"),
    path("views/", saved_views, name="saved_views"),
    # Areas: each is a package with addresses and views of its own.
    path("activities/", include("console.activities.urls")),
    path("runs/", include("console.runs.urls")),
    path("inbox/", views.inbox_list, name="inbox"),
    path("inbox/approve/", views.inbox_approve, name="inbox_approve"),
    path("inbox/undo/", undo, name="inbox_undo"),
    path("inbox/gone/", views.inbox_gone, name="inbox_gone"),
    path("inbox/back/", views.inbox_back, name="inbox_back"),
    path("inbox/<uuid:item_id>/", views.inbox_item, name="inbox_item"),
    path("queues/", include("console.queues.urls")),
    path("dead-letters/", include("console.dead_letters.urls")),
    path("schedules/", include("console.schedules.urls")),
    path("agents/", include("console.agents.urls")),
    path("usage/", include("console.usage.urls")),
    path("audit/", include("console.audit.urls")),
    path("settings/", include("console.settings.urls")),
    path(
        "login/",
        contained_with_scripts(
            LoginView.as_view(
                template_name="console/login.html", redirect_authenticated_user=True, next_page="console:home"
            )
        ),
        name="login",
    ),
    path("logout/", LogoutView.as_view(next_page="console:login"), name="logout"),
    # Addresses that people know from elsewhere; with and without the slash.
    re_path(
        r"^admin/scheduler/schedules/?$",
        Signpost.as_view(
            leads_to=(
                "admin:pipelines_schedule_changelist",
                "admin:django_celery_beat_periodictask_changelist",
            )
        ),
    ),
    re_path(
        r"^admin/scheduler/pipelines/?$",
        Signpost.as_view(leads_to=("admin:pipelines_pipeline_changelist",)),
    ),
]
