"""Under which name a superuser of the admin is noted as the actor."""

from __future__ import annotations

from django.http import HttpRequest


def actor_of(request: HttpRequest) -> str:
    return f"user:{request.user.get_username()}"
