"""Answers of the server as objects: the unchanged JSON, with typed attributes for the most used members.

A `Record` is a dict, so it also contains members that a newer server adds, and can be serialized to JSON again. Nested objects are
records, too.
"""

from __future__ import annotations

from typing import Any


class Record(dict[str, Any]):
    """A JSON object whose fields are attributes: `activity.status` is `activity["status"]`.

    `etag` is the version that was read. Pass it to a change, which is refused with `PreconditionFailed` if somebody else has changed the
    object. Members with the name of a method of dict (`items`, `keys`) are only available with brackets.
    """

    etag: str | None = None

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no field {name!r}") from None


class Activity(Record):
    """A piece of work that an agent or a person does."""

    id: str
    name: str
    description: str
    status: str
    assignee_type: str
    agent_role: str | None
    human_role: str | None
    priority: int
    params: dict[str, Any]
    metadata: dict[str, Any]
    input_ref: str | None
    output_ref: str | None
    parent: str | None
    pipeline_run: str | None
    step: str | None
    attempts: int
    reviewer_notes: str | None
    chosen_option: str | None
    blocker_type: str | None
    blocker_message: str | None
    error: dict[str, Any] | None
    created_at: str
    started_at: str | None
    finished_at: str | None


class SubmittedActivity(Activity):
    """The answer to a submission. `deduplicated` means that unfinished work with the same key already existed."""

    deduplicated: bool


class Output(Record):
    """The output of an activity: text, data, or both."""

    id: str
    content: str | None
    data: Any
    content_type: str
    created_at: str


class Run(Record):
    """One attempt of an agent at an activity."""

    id: str
    activity: str
    attempt: int
    status: str
    started_at: str
    ended_at: str | None
    progress: Any
    usage: dict[str, Any] | None
    session_id: str
    error: dict[str, Any] | None


class Why(Record):
    """Why an activity is not running: a `code`, a sentence, and since when."""

    code: str | None
    detail: str
    holder: str | None
    since: str | None
    position: int | None
    estimate_seconds: float | None


class PipelineRun(Record):
    """One run of a version of a pipeline, with the state of each of its steps."""

    id: str
    pipeline: str
    version: int
    status: str
    params: dict[str, Any]
    steps: list[Record]
    started_at: str
    finished_at: str | None


class Approval(Record):
    """A question to people that may concern several activities."""

    id: str
    status: str
    type: str
    title: str


class Schedule(Record):
    """A schedule, which runs repeatedly or once."""

    id: str
    name: str
    repeat: str
    cron: str | None
    interval_ms: int | None
    timezone: str
    target_type: str
    enabled: bool
    next_run_at: str | None
    last_run_at: str | None


class Forecast(Record):
    """A preview: when a schedule fires, and which jobs it creates."""

    fires_at: list[str]
    in_words: str


class Queue(Record):
    """What waits and runs for a role."""

    role: str
    granted: int
    running: int
    delayed: int
    oldest_wait_seconds: float | None
    workers: int
    paused: bool


class Budget(Record):
    """A cap, what is spent of it, and what running work has reserved. Amounts are decimals as text, in its unit."""

    id: str
    name: str
    unit: str
    period: str
    cap: str
    spent: str
    reserved: str
    remaining: str


class Job(Record):
    """A job, as the server sends it to an agent."""

    job_id: str
    execution_id: str
    attempt: int
    agent: str
    prompt: str
    params: dict[str, Any]
    input: dict[str, Any] | None
    session_id: str | None
    deadline: str
    callback: dict[str, str]


class Heartbeat(Record):
    """Whether to continue: `stop` is true if the work was cancelled or its budget is used up."""

    stop: bool
    reason: str | None


class Logged(Record):
    """How many log lines were stored, how many were dropped, and the number of the last line."""

    accepted: int
    dropped: int
    last: int | None
    duplicate: bool
    stop: bool


class LogPage(Record):
    """Lines of a run's log, `{number, at, kind, text}`. Request more with `after=page.cursor` until `ended` is true and `results` is
    empty."""

    results: list[Record]
    cursor: int
    dropped: int
    ended: bool


class Receipt(Record):
    """Whether a report was accepted, and whether it was repeated."""

    accepted: bool
    duplicate: bool


class ToolAnswer(Record):
    """The result of a tool: the id of the created activity, and whether to stop working.
    Only `create_approval` has `held` and `not_held`. Its `id` is None if no activity could wait and nobody was asked.
    """

    id: str | None
    status: str
    stop: bool
    duplicate: bool
    held: list[str]
    not_held: list[dict[str, str]]
