"""Addresses of what was consumed."""

from __future__ import annotations

from django.urls import path

from console.usage import views

urlpatterns = [
    path("", views.usage, name="usage"),
    path("export/<slug:what>/", views.export, name="usage_export"),
]
