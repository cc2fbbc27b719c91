"""An agent puts its work aside: the run ends without an output, and the activity waits for something else, holding no slot.

From that moment the run is over. What its agent still says about it changes nothing, except that it may name its session and its usage.
When a worker still waits for the agent's answer, its slot is given back with that answer, so the activity cannot start a second
time while its first call is still going.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from activities.admission import Exchange
from activities.admission.exchange import Release
from activities.exceptions import RunSuperseded
from activities.models import Activity
from activities.run_tokens import RunToken
from activities.states import RUNNING

from . import activity_tree, budgets, relay, transitions


def live(run: RunToken, *, with_parent: bool = False) -> Activity:
    """The activity, locked, if `run` is its live run; with `with_parent` also whoever its end may wake. Raises `RunSuperseded`."""
    if with_parent:
        activity = activity_tree.lock_with_parent(run.tenant_id, run.activity_id)
    else:
        activity = activity_tree.lock(run.tenant_id, [run.activity_id]).get(run.activity_id)
    if activity is None or activity.fence != run.fence or activity.status not in RUNNING:
        raise RunSuperseded(run.run_id)
    return activity


def suspend(
    run: RunToken, verb: str, *, tool: str, detail: Mapping[str, Any] | None = None, **changes: Any
) -> transitions.Moved:
    """Move the activity of a live run, which is locked, by `verb` and end the run. Raises `RunSuperseded`, `TransitionRefused`.

    The attempt has come to a good end, so the run that goes on with the work has all attempts again.
    """
    moved = transitions.apply(
        run.activity_id,
        verb,
        actor=f"run:{run.run_id}",
        run_id=run.run_id,
        detail=detail,
        attempts=0,
        error=None,
        **changes,
    )
    ended = transitions.suspend(
        tenant_id=run.tenant_id, activity_id=run.activity_id, run_id=run.run_id, tool=tool
    )
    if ended is None:
        raise RunSuperseded(run.run_id)
    if ended.accepted_at is not None:
        relay.after_commit(Exchange(releases=[Release(run.activity_id, ended.grant)]))
    budgets.ended(run, ended)
    return moved
