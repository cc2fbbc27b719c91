"""A user of the console's pages whose browser has no scripts, and the notices that they get."""

from __future__ import annotations

import re
from typing import Any

from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client

from tests.browsing import words
from tests.forms import Form, forms_of

INBOX = "/inbox/"


class Person:
    """Somebody who signed in, with a browser that has no scripts. Cross-site forgery is guarded against as in production."""

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
        """The form of an item's page, as it is now."""
        return forms_of(self.look(item, view))["answer"]

    def answer(self, item: Any, deed: str, **fields: str) -> HttpResponse:
        """Open an item, and press a button of its page."""
        return self.form(item).send(self.browser, ("deed", deed), **fields)


def notice(answer: HttpResponse) -> str:
    """What the page tells the person first."""
    found = re.search(r'<(\w+)[^>]*id="notice"[^>]*>(.*?)</\1>', answer.content.decode(), re.DOTALL)
    assert found, words(answer)
    return " ".join(re.sub(r"<[^>]+>", " ", found[2]).split())


def done(answer: HttpResponse, by: Person) -> str:
    """The answer was accepted; what the next page says."""
    assert answer.status_code == 302, (answer.status_code, words(answer))
    return notice(by.get(answer["Location"]))


def refused(answer: HttpResponse, status: int) -> str:
    assert answer.status_code == status, (answer.status_code, words(answer))
    return notice(answer)


def sent_by(who: Person, form: Form, **changed: Any) -> HttpResponse:
    """The form of somebody else's page, or one that the page does not have, sent with this person's own token."""
    token = who.browser.get(INBOX).context["csrf_token"]
    return who.browser.post(
        form.action.partition("#")[0], {**form.fields, "csrfmiddlewaretoken": str(token), **changed}
    )
