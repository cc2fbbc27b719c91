"""Where activities' signals reach pipelines. `connect` is the one place where signals are wired."""

from __future__ import annotations

from typing import Any

from activities.signals import activity_reopened, activity_settled
from pipelines import progression


def connect() -> None:
    activity_settled.connect(advance_run_of_activity, dispatch_uid="pipelines.advance_run")
    activity_reopened.connect(reopen_run_of_activity, dispatch_uid="pipelines.reopen_run")


def advance_run_of_activity(sender: Any, *, activity: Any, **kwargs: Any) -> None:
    progression.advance(activity)


def reopen_run_of_activity(sender: Any, *, activity: Any, **kwargs: Any) -> None:
    progression.reopen(activity)
