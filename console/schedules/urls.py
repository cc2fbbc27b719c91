"""Addresses of the schedules."""

from __future__ import annotations

from django.urls import path

from console.schedules import views

urlpatterns = [
    path("", views.every, name="schedules"),
    path("try/", views.trial, name="schedules_try"),
    path("<uuid:schedule_id>/", views.one, name="schedule"),
]
