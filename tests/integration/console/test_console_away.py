"""Pages say in plain words that PostgreSQL does not answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.db import connections

from tenants.context import APP
from tests.browsing import visible_text
from tests.console_user import Person
from tests.engine import Engine
from tests.forms import forms_of
from tests.network import free_port

PAGES = ["/", "/activities/", "/inbox/", "/queues/", "/usage/", "/settings/"]


@contextmanager
def without_database() -> Iterator[None]:
    """Point the connection at a port where nothing listens."""
    connection = connections[APP]
    port = connection.settings_dict["PORT"]
    connection.close()
    connection.settings_dict["PORT"] = str(free_port())
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict["PORT"] = port


@pytest.mark.parametrize("address", PAGES)
def test_a_page_without_the_database_says_so_and_asks_for_a_retry(
    address: str, person: Callable[..., Person]
) -> None:
    ann = person("ann", role="admin")
    with without_database():
        page = ann.browser.get(address)

    assert (page.status_code, page["Retry-After"]) == (503, "5")
    assert "The database does not answer." in visible_text(page)
    assert "Sign out" not in visible_text(page)
    assert ann.get(address).status_code == 200


def test_a_form_sent_without_the_database_warns_against_blind_retries(engine: Engine, ann: Person) -> None:
    form = forms_of(ann.get("/queues/qa/"))["switch"]

    with without_database():
        page = form.send(ann.browser, ("action", "pause"))

    assert page.status_code == 503
    assert "check before you send it again" in visible_text(page)
    assert 'http-equiv="refresh"' not in page.content.decode(), "it would be sent again"
