"""People get an error page with a way back; programs get a plain response."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connections
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext

from console import error_pages
from tenants.context import APP
from tenants.models import Tenant
from tests.browsing import visible_text
from tests.console_user import Person

BROWSER = {"accept": "text/html,application/xhtml+xml"}


def test_an_unknown_address_shows_a_page_with_a_way_back(ann: Person) -> None:
    answer = ann.browser.get("/no/such/page", headers=BROWSER)

    assert answer.status_code == 404
    assert "Page not found" in visible_text(answer)
    assert 'href="/"' in answer.content.decode()
    assert answer["X-Request-Id"] in visible_text(answer)
    assert "script-src 'self';" in answer["Content-Security-Policy"]


def test_a_program_gets_no_error_page(tenant: Tenant, client: Client) -> None:
    for address in ("/no/such/page", "/api/v1/nothing/"):
        answer = client.get(address)
        assert answer.status_code == 404
        assert "Go to the overview" not in answer.content.decode()

    answer = client.get("/api/v1/nothing/", headers=BROWSER)
    assert answer["Content-Type"] == "application/problem+json"


def test_an_expired_form_says_that_nothing_was_done(ann: Person) -> None:
    answer = ann.browser.post("/queues/", {"action": "pause"}, headers=BROWSER)

    assert answer.status_code == 403
    assert "This form has expired Nothing was done." in visible_text(answer)


@pytest.mark.parametrize(
    ("handler", "status", "message"),
    [
        (error_pages.bad_request, 400, "Bad request"),
        (error_pages.permission_denied, 403, "Your role does not allow this."),
        (error_pages.server_error, 500, "An internal error occurred."),
    ],
    ids=("400", "403", "500"),
)
def test_the_error_pages_need_no_database(database: None, handler: Any, status: int, message: str) -> None:
    request = RequestFactory().get("/queues/", headers=BROWSER)
    why = () if handler is error_pages.server_error else (ValueError("why"),)

    with CaptureQueriesContext(connections[APP]) as captured:
        answer = handler(request, *why)

    assert answer.status_code == status
    assert message in visible_text(answer)
    assert len(captured) == 0
