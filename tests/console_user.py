"""A user of the console with a browser without scripts, and the notices that pages display."""

from __future__ import annotations

import re
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client
from django.utils.crypto import get_random_string

from tenants.context import tenant_scope
from tenants.models import AuditEntry, Tenant
from tests.browsing import visible_text
from tests.forms import Form, forms_of

INBOX = "/inbox/"


class Person:
    """A signed-in user. Their browser runs no scripts, and the protection against cross-site request forgery is on."""

    def __init__(self, user: User) -> None:
        self.user, self.browser = user, Client(enforce_csrf_checks=True)
        self.browser.force_login(user)

    def get(self, address: str = INBOX) -> HttpResponse:
        answer = self.browser.get(address)
        assert answer.status_code == 200, answer.content
        return answer

    def look(self, item: Any, view: str = "") -> HttpResponse:
        """Open an item."""
        return self.get(f"{INBOX}{item.pk}/{view}")

    def form(self, item: Any, view: str = "") -> Form:
        """Return the form of an item's current page."""
        return forms_of(self.look(item, view))["answer"]

    def answer(self, item: Any, action: str, **fields: str) -> HttpResponse:
        """Open an item and press a button of its page."""
        return self.form(item).send(self.browser, ("action", action), **fields)


def notice(answer: HttpResponse) -> str:
    """Return the notice at the top of a page."""
    match = re.search(r'<(\w+)[^>]*id="notice"[^>]*>(.*?)</\1>', answer.content.decode(), re.DOTALL)
    assert match, visible_text(answer)
    return " ".join(re.sub(r"<[^>]+>", " ", match[2]).split())


def success_notice(answer: HttpResponse, by: Person) -> str:
    """Assert that the answer was accepted and return the notice of the next page."""
    assert answer.status_code == 302, (answer.status_code, visible_text(answer))
    return notice(by.get(answer["Location"]))


def refusal_notice(answer: HttpResponse, status: int) -> str:
    assert answer.status_code == status, (answer.status_code, visible_text(answer))
    return notice(answer)


def trail_of(tenant: Tenant) -> list[AuditEntry]:
    """Return the tenant's audit trail, oldest entry first."""
    with tenant_scope(tenant.pk):
        return list(AuditEntry.objects.for_tenant(tenant.pk).order_by("number"))


def send_form(who: Person, form: Form, **changed: Any) -> HttpResponse:
    """Send a form with this person's own token. The form may come from another person's page or have other fields."""
    cookies, name = who.browser.cookies, settings.CSRF_COOKIE_NAME
    if name not in cookies:
        cookies[name] = get_random_string(
            32
        )  # as the person's first page would, which takes longer than the test
    token = cookies[name].value
    return who.browser.post(
        form.action.partition("#")[0], {**form.fields, "csrfmiddlewaretoken": token, **changed}
    )
