"""What the server answers, as objects: JSON as it came, with attributes for the fields that people look at most.

A `Record` is a dict, so fields that a later server adds are there as well, and it can be written as JSON again. Nested
objects are records, too.
"""

from __future__ import annotations

from typing import Any


class Record(dict[str, Any]):
    """A JSON object whose fields are attributes: `activity.status` is `activity["status"]`.

    `etag` is the version in which it was read: give it to a change, and the change is refused with `PreconditionFailed`
    if somebody else was faster. A field with the name of a method of dict (`items`, `keys`) is reached with brackets alone.
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
    """An activity as its submission is answered: `deduplicated` where live work with the same key was there already."""

    deduplicated: bool


class Output(Record):
    """What came of an activity: text, data, or both."""

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
    """When something is to be done again and again, or once."""

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
    """When a schedule would fire, and with what jobs."""

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
    """A cap, what is spent of it, and what running work has reserved: decimals as text, in its unit."""

    id: str
    name: str
    unit: str
    period: str
    cap: str
    spent: str
    reserved: str
    remaining: str


class Job(Record):
    """What an agent is to do, as the server sends it to the agent."""

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
    """Whether to go on: `stop` is true once the work was cancelled or its budget is used up."""

    stop: bool
    reason: str | None


class Logged(Record):
    """How many lines of a log are kept, how many are not, and the number of its last one."""

    accepted: int
    dropped: int
    last: int | None
    duplicate: bool
    stop: bool


class LogPage(Record):
    """Lines of a run's log, `{number, at, kind, text}`. Ask again with `after=page.cursor` until `ended` is true and `results` is empty."""

    results: list[Record]
    cursor: int
    dropped: int
    ended: bool


class Receipt(Record):
    """Whether a report counted, and whether it had been made before."""

    accepted: bool
    duplicate: bool


class ToolAnswer(Record):
    """What a tool did: the id of what it made, and whether to stop working.

    `held` and `not_held` are of `create_approval`, whose `id` is None when nothing could wait and nobody was asked.
    """

    id: str | None
    status: str
    stop: bool
    duplicate: bool
    held: list[str]
    not_held: list[dict[str, str]]
