"""Addresses of the activities' pages."""

from __future__ import annotations

from django.urls import path

from console.activities import views

urlpatterns = [
    path("", views.listed, name="activities"),
    path("bulk/", views.many, name="activities_bulk"),
    path("bulk/<uuid:job_id>/", views.job, name="activities_bulk_job"),
    path("bulk/<uuid:job_id>/stop/", views.stop_job, name="activities_bulk_stop"),
    path("<uuid:activity_id>/", views.one, name="activity"),
    path("<uuid:activity_id>/runs/<uuid:run_id>/log/", views.whole_log, name="activity_log"),
    path("<uuid:activity_id>/texts/", views.both_texts, name="activity_texts"),
]
