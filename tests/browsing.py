"""The admin as a person uses it: lists, pages, actions and messages."""

from __future__ import annotations

import re
from typing import Any

from django.contrib.messages import get_messages
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

#: A pipeline whose second step awaits approval.
BRIEF = {
    "key": "brief",
    "name": "Brief",
    "steps": [
        {"id": "research", "agent_role": "qa"},
        {"id": "write", "agent_role": "dev", "depends_on": ["research"], "requires_approval": True},
    ],
}


def list_url(model: type) -> str:
    """Return the URL of a model's list."""
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")  # type: ignore[attr-defined]


def page_url(row: Any) -> str:
    """Return the URL of a row's page."""
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])


def run_action(browser: Client, model: type, action: str, *rows: Any, **answers: str) -> HttpResponse:
    """Choose an action for rows of a list, and confirm it if `answers` are passed."""
    chosen = {"action": action, "_selected_action": [str(row.pk) for row in rows], **answers}
    return browser.post(list_url(model), chosen)


def messages_of(answer: HttpResponse) -> list[str]:
    """Return the messages that the next page displays."""
    return [str(message) for message in get_messages(answer.wsgi_request)]  # type: ignore[attr-defined]


def visible_text(answer: HttpResponse) -> str:
    """Return the text of a page without its markup."""
    text = re.sub(r"<(script|style)\b.*?</\1>", "", answer.content.decode(), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", text.replace("</span>", "")).split())


def no_inlines(*prefixes: str) -> dict[str, str]:
    """Return the management data of unchanged formsets."""
    return {
        f"{prefix}-{name}_FORMS": "0"
        for prefix in prefixes
        for name in ("TOTAL", "INITIAL", "MIN_NUM", "MAX_NUM")
    }
