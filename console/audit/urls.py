"""Addresses of the audit trail."""

from __future__ import annotations

from django.urls import path

from console.audit import views

urlpatterns = [
    path("", views.trail, name="audit"),
    path("export/", views.export, name="audit_export"),
]
