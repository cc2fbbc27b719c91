"""Addresses of the runs' pages."""

from __future__ import annotations

from django.urls import path

from console.runs import views

urlpatterns = [
    path("", views.listed, name="runs"),
    path("<uuid:run_id>/", views.one, name="run"),
    path("<uuid:run_id>/replay/", views.replayed, name="run_replay"),
]
