"""The quick set-up of tests leaves Django's `save` as it was."""

from __future__ import annotations

import threading

import pytest
from django.db import models

from tenants.models import ApiToken
from tests import quick_rows


def test_rows_are_saved_as_usual_after_two_threads_have_set_up_rows_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saved: list[str] = []
    monkeypatch.setattr(quick_rows, "insert", lambda rows: saved.append("quickly"))
    monkeypatch.setattr(models.Model, "save_base", lambda *_, **__: saved.append("as usual"))
    is_inside, may_leave = threading.Event(), threading.Event()

    def other() -> None:
        with quick_rows.of(ApiToken):
            is_inside.set()
            may_leave.wait()

    thread = threading.Thread(target=other)
    thread.start()
    is_inside.wait()
    ApiToken().save()
    with quick_rows.of(ApiToken):
        may_leave.set()
        thread.join()
        ApiToken().save()
    ApiToken().save()

    assert saved == ["as usual", "quickly", "as usual"]
