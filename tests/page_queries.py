"""The statements of a page, without those that begin and end transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import connections
from django.test.utils import CaptureQueriesContext

#: The limit for every page of the console.
MOST = 13
_AROUND = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "SET LOCAL", "SELECT SET_CONFIG")


def statements(look: Callable[[], Any]) -> list[str]:
    """Record the statements of a page."""
    with CaptureQueriesContext(connections["default"]) as captured:
        look()
    return [each["sql"] for each in captured if not each["sql"].upper().startswith(_AROUND)]
