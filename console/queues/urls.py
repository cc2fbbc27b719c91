"""Addresses of the queues."""

from __future__ import annotations

from django.urls import path

from console.queues import views

urlpatterns = [
    path("", views.every, name="queues"),
    path("<slug:role>/", views.one, name="queue"),
]
