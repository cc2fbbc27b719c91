"""Superusers with break-glass access to every tenant."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.test import Client

from tenants import break_glass


def create_superuser(username: str = "root") -> User:
    """Return a superuser with break-glass access to all tenants."""
    user = User.objects.create_superuser(username, f"{username}@example.com", "a long password")
    break_glass.open_for(user, "", "Tests look at everything.")
    return user


def browser_of(user: Any) -> Client:
    browser = Client()
    browser.force_login(user)
    return browser
