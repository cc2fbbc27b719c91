"""Addresses of the dead letters."""

from __future__ import annotations

from django.urls import path

from console.dead_letters import views

urlpatterns = [
    path("", views.every, name="dead_letters"),
    path("<slug:fingerprint>/", views.alike, name="dead_letters_alike"),
]
