"""The kinds of events. `sql/record.sql` makes them; readers and webhooks choose by them, so they are stable and only ever added to."""

from __future__ import annotations

#: Kind and meaning, in the order of the documentation.
MEANINGS: dict[str, str] = {
    "activity.created": "work was submitted",
    "activity.assigned": "a worker has claimed it",
    "activity.started": "its agent is called, or a person has taken it up",
    "activity.waiting": "it waits for people or for other work; `status` says for what",
    "activity.released": "it is ready to be claimed again: woken, tried again, or given back",
    "activity.completed": "it is done",
    "activity.approved": "its result, or the gate, was approved",
    "activity.rejected": "its result, or the gate, was rejected",
    "activity.reassigned": "another activity has taken its place",
    "activity.failed": "it failed for good",
    "activity.needs_review": "people must look at it",
    "activity.cancelled": "it was cancelled",
    "approval.requested": "people are asked for a decision",
    "approval.decided": "they have decided; `status` says how",
    "approval.withdrawn": "nobody has to decide any more",
    "pipeline_run.started": "a run of a pipeline began",
    "pipeline_run.resumed": "one that had ended goes on",
    "pipeline_run.completed": "it is completed",
    "pipeline_run.failed": "it failed",
    "pipeline_run.cancelled": "it was cancelled",
    "schedule.fired": "one of its times has come",
    "schedule.skipped": "one of its times was left out",
    "alert.raised": "people are told of something",
    "budget.warning": "most of a budget is spent",
    "budget.exceeded": "work waits for a budget",
    "dead_letter": "work that failed for good was put among the dead letters",
}

KINDS = tuple(MEANINGS)
