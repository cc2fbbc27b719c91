"""Addresses of the agents."""

from __future__ import annotations

from django.urls import path

from console.agents import views

urlpatterns = [
    path("", views.every, name="agents"),
    path("<slug:role>/", views.one, name="agent"),
]
