"""Addresses of a tenant's settings."""

from __future__ import annotations

from django.urls import path

from . import members, programs, views

urlpatterns = [
    path("", members.members, name="settings"),
    path("tokens/", programs.tokens, name="settings_tokens"),
    path("<slug:key>/", views.collection, name="settings_collection"),
    path("<slug:key>/<uuid:item_id>/", views.item, name="settings_item"),
]
