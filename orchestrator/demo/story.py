"""The demonstration, in three acts.

In the first, two agencies run the same pipeline at the same time: keywords, a brief that an editor must approve, then an outline and an
audit in parallel. The first editor requests changes to the brief and approves the revision; the second approves at once.

In the second, agents ask and people answer. A planner reports that the client's account is disconnected, and a person signs in again. The
planner has another agent look up keywords, has three posts prepared, and asks which direction they should take. One decision of the editor
wakes the planner and all three writers.

The third act is a schedule whose parameters come from a table. The sections of the text become the rows of a dataset. A schedule looks up
the keywords of each active row every Monday. Its preview is shown, then it is run by hand, and every row becomes a job, a few at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx2

NOTE = 'Add a section about what it costs. Mention "city council". Max 700 words.'
APPROVAL_NOTE = "Good. Continue."
POLL_SECONDS = 0.15
PATIENCE_SECONDS = 120.0
_DECIDED = {"approve": "approved", "reject": "rejected"}


class DemoFailed(Exception):
    """Something unexpected happened in the demonstration; the message says what."""


@dataclass(slots=True)
class Agency:
    """One tenant, its people, and its run."""

    name: str
    operator: ApiClient
    editor: ApiClient
    note: str | None
    run: dict[str, Any] = field(default_factory=dict)
    activities: dict[str, dict[str, Any]] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    decisions: dict[tuple[str, int], str] = field(default_factory=dict)  # by step and round
    rejected: bool = False

    @property
    def ended(self) -> bool:
        return self.run.get("status") in ("completed", "failed", "cancelled")


def begin_run(agency: Agency, definition: dict[str, Any], text: str) -> None:
    """Save the pipeline and start a run on the text."""
    address = f"/pipelines/{definition['key']}/"
    agency.operator.put(address, definition)
    agency.run = agency.operator.post(f"{address}runs/", {"input": {"content": text}})


def follow_runs(
    agencies: list[Agency], redraw: Callable[[], None], *, patience_seconds: float = PATIENCE_SECONDS
) -> None:
    """Poll until every run has ended, and decide the items of the editors."""
    deadline = time.monotonic() + patience_seconds
    while not all(agency.ended for agency in agencies):
        if time.monotonic() > deadline:
            raise DemoFailed(
                "; ".join(
                    f"{agency.name} is {agency.run.get('status')}: {agency.log[-1:]}" for agency in agencies
                )
            )
        for agency in agencies:
            _refresh(agency)
            _decide(agency)
        redraw()
        time.sleep(POLL_SECONDS)
    for agency in agencies:
        if agency.run["status"] != "completed":
            raise DemoFailed(f"The run of {agency.name} {agency.run['status']}: {_errors(agency)}")


def _refresh(agency: Agency) -> None:
    if agency.ended:
        return
    agency.run = agency.operator.get(f"/pipeline-runs/{agency.run['id']}/")
    for activity in agency.operator.get("/activities/", pipeline_run=agency.run["id"], limit=50)["results"]:
        agency.activities[activity["id"]] = activity


def _decide(agency: Agency) -> None:
    for item in agency.editor.get("/inbox/")["results"]:
        if item.get("status") not in (None, "created", "in_progress"):
            continue
        verdict, notes = "approve", APPROVAL_NOTE
        if agency.note and not agency.rejected:
            agency.rejected = True
            verdict, notes = "reject", agency.note
        agency.editor.post(f"/activities/{item['id']}/{verdict}/", {"notes": notes})
        agency.log.append(f"editor {_DECIDED[verdict]}: {notes}")
        brief = [*work_of(agency)][-1]  # the latest work, because the next steps start after the approval
        agency.decisions[brief["step"], brief["round"]] = agency.log[-1]


def _errors(agency: Agency) -> str:
    failed = [
        activity
        for activity in agency.activities.values()
        if activity["status"] in ("failed", "needs_review")
    ]
    return (
        "; ".join(f"{activity['name']}: {activity.get('error') or activity['status']}" for activity in failed)
        or "see the logs"
    )


def work_of(agency: Agency) -> Iterator[dict[str, Any]]:
    """Yield the activities of agents, without gates, in the order of their creation."""
    work = [activity for activity in agency.activities.values() if activity["assignee_type"] == "agent"]
    yield from sorted(work, key=lambda activity: activity["created_at"])


class ApiRefused(Exception):
    """The API answered with a problem."""


class ApiClient:
    """Calls `/api/v1` with one token."""

    def __init__(self, base: str, token: str) -> None:
        self._http = httpx2.Client(
            base_url=f"{base}/api/v1",
            headers={"Authorization": f"Bearer {token}"},
            timeout=30.0,
            trust_env=False,
        )

    def get(self, path: str, **query: Any) -> Any:
        return self._answer(self._http.get(path, params=query))

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._answer(self._http.post(path, json=body or {}))

    def put(self, path: str, body: dict[str, Any]) -> Any:
        return self._answer(self._http.put(path, json=body))

    def text(self, path: str) -> str:
        answer = self._http.get(path)
        answer.raise_for_status()
        return answer.text

    def close(self) -> None:
        self._http.close()

    @staticmethod
    def _answer(answer: httpx2.Response) -> Any:
        if answer.is_error:
            raise ApiRefused(
                f"{answer.request.method} {answer.request.url.path} -> {answer.status_code}: {answer.text[:1000]}"
            )
        return answer.json()


KIND, ACCOUNT = "instagram", "The client's Instagram"
SIGNED_IN = "Signed in to the account again."
_ENDED_STATUSES = ("done", "approved", "failed", "needs_review", "cancelled")


@dataclass(slots=True)
class Campaign:
    """The planner's activity, the activities that follow from it, and the answers of people."""

    operator: ApiClient
    editor: ApiClient
    planner: str = ""
    channel: str = ""
    chosen: str = ""
    activities: dict[str, dict[str, Any]] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    @property
    def work(self) -> list[dict[str, Any]]:
        """The activities of agents in the order of their creation."""
        work = [activity for activity in self.activities.values() if activity["assignee_type"] == "agent"]
        return sorted(work, key=lambda activity: activity["created_at"])

    @property
    def ended(self) -> bool:
        return len(self.work) > 1 and all(activity["status"] in _ENDED_STATUSES for activity in self.work)


def begin_campaign(campaign: Campaign, text: str) -> None:
    """Connect an account whose access turns out to be expired, and submit the planner's activity."""
    # The client's account may be there from an earlier demonstration.
    existing = campaign.operator.get("/channels/", kind=KIND, search=ACCOUNT)["results"]
    campaign.channel = (
        existing[0] if existing else campaign.operator.post("/channels/", {"kind": KIND, "name": ACCOUNT})
    )["id"]
    # Paused, so that no month of it is planned; its items in the inbox are those of this demonstration.
    pipelines = [pipeline["key"] for pipeline in campaign.operator.get("/pipelines/", limit=1)["results"]]
    deliverable = campaign.operator.post(
        "/deliverables/",
        {"key": f"social-posts-{uuid4().hex[:8]}", "name": "Social posts", "status": "paused", "pipelines": pipelines},
    )  # fmt: skip
    planner = campaign.operator.post(
        "/activities/",
        {
            "name": "Social calendar",
            "description": "Plan this month's posts about the text.",
            "agent_role": "social-calendar-planner",
            "deliverable": deliverable["id"],
            "params": {"channel_id": campaign.channel},
            "input": {"content": text},
        },
    )
    campaign.planner = planner["id"]


def follow_campaign(campaign: Campaign, redraw: Callable[[], None]) -> None:
    """Poll until everything has ended, and answer the questions to people."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not campaign.ended:
        if time.monotonic() > deadline:
            raise DemoFailed(f"The campaign does not progress: {campaign.log[-1:]}")
        planner = campaign.operator.get(f"/activities/{campaign.planner}/")
        related = campaign.operator.get("/activities/", parent=campaign.planner, limit=50)["results"]
        campaign.activities = {activity["id"]: activity for activity in (planner, *related)}
        _answer_questions(campaign)
        redraw()
        time.sleep(POLL_SECONDS)
    if unfinished := [activity["name"] for activity in campaign.work if activity["status"] != "done"]:
        raise DemoFailed(f"The campaign failed: {', '.join(unfinished)} did not get done.")


def _answer_questions(campaign: Campaign) -> None:
    items = campaign.editor.get("/inbox/", deliverable=campaign.activities[campaign.planner]["deliverable"])[
        "results"
    ]
    for item in items:
        if item["kind"] == "resolution":
            campaign.operator.post(f"/channels/{campaign.channel}/reactivate/")
            campaign.operator.post(f"/activities/{item['id']}/resolve/", {"note": SIGNED_IN})
            campaign.log.append(f"blocked: {item['name']} · resolved: {SIGNED_IN}")
        elif item["kind"] == "approval" and _all_wait(campaign):
            _choose(campaign, item)
        elif item["kind"] == "review" and campaign.chosen:
            # Each writer has also asked its own question, which the approval does not answer.
            campaign.editor.post(
                f"/activities/{item['id']}/review/",
                {"approved": True, "feedback": f"Yes, as {campaign.chosen}."},
            )
            campaign.log.append(f"{item['name']}: approved")


def _all_wait(campaign: Campaign) -> bool:
    """Return whether the planner and its writers wait for the decision."""
    writers = [activity for activity in campaign.work if activity["agent_role"] == "social-post-writer"]
    waiting = (*writers, campaign.activities[campaign.planner])
    return bool(writers) and all(activity["status"] == "awaiting_review" for activity in waiting)


def _choose(campaign: Campaign, item: dict[str, Any]) -> None:
    option = campaign.chosen = item["decision_rules"]["options"][0]
    decided = campaign.editor.post(
        f"/approvals/{item['id']}/decide/",
        {"decision": "approved", "chosen_option": option, "notes": "Keep it short and friendly."},
    )
    campaign.log.append(f"editor chose “{option}”: {len(decided['woken'])} activities continue")


DATASET, SCHEDULE = "section", "Keywords of every section"
BATCH, STAGGER_MS = 2, 500
SOURCE = f"db:{DATASET}:all:text?active=true&batchSize={BATCH}&staggerDelay={STAGGER_MS}"
FEWEST_WORDS = 20  # of a section; shorter ones have no useful keywords
_FIELDS = {"id": "string", "title": "string", "text": "string", "active": "boolean"}


@dataclass(slots=True)
class Weekly:
    """The schedule, its preview and its execution."""

    operator: ApiClient
    schedule: str = ""
    rows: int = 0
    preview: dict[str, Any] = field(default_factory=dict)
    execution: dict[str, Any] = field(default_factory=dict)
    jobs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.execution.get("status") in ("success", "partial", "failed", "cancelled")


def begin_weekly(weekly: Weekly, text: str) -> None:
    """Fill the dataset, save the schedule, get its preview, and run it now."""
    rows = sections_of(text)
    weekly.rows = len(rows)
    # The dataset may be there from an earlier demonstration.
    names = [dataset["name"] for dataset in weekly.operator.get("/datasets/", limit=100)["results"]]
    if DATASET not in names:
        weekly.operator.post("/datasets/", {"name": DATASET, "fields": _FIELDS, "rows": rows})
    else:
        weekly.operator.post(f"/datasets/{DATASET}/rows/?replace=true", {"rows": rows})
    weekly.schedule = _schedule(weekly.operator)["id"]
    weekly.preview = weekly.operator.get(f"/schedules/{weekly.schedule}/preview/", count=3)
    if weekly.preview["errors"]:
        raise DemoFailed(f"The schedule would not work: {weekly.preview['errors']}")
    weekly.execution = weekly.operator.post(f"/schedules/{weekly.schedule}/run/")


def sections_of(text: str) -> list[dict[str, Any]]:
    """Return a row for each section of a Markdown text, or for each paragraph if it has no sections. Short ones are not active."""
    parts = [part.strip() for part in f"\n{text}".split("\n## ") if part.strip()]
    if len(parts) == 1:
        parts = [part.strip() for part in text.split("\n\n") if part.strip()]
    return [
        {
            "id": str(number),
            "title": part.partition("\n")[0].lstrip("# ")[:80],
            "text": part[:20_000],
            "active": len(part.split()) >= FEWEST_WORDS,
        }
        for number, part in enumerate(parts[:12], 1)
    ]


def _schedule(operator: ApiClient) -> Any:
    existing = operator.get("/schedules/", search=SCHEDULE)["results"]
    if existing:
        return existing[0]
    return operator.post(
        "/schedules/",
        {
            "name": SCHEDULE,
            "repeat": "repeating",
            "cron": "0 8 * * MON",
            "timezone": "Europe/Berlin",
            "target_type": "agent",
            "agent_role": "keyword-researcher",
            "params": {"text": SOURCE},
            "enabled": True,
        },
    )


def follow_weekly(weekly: Weekly, redraw: Callable[[], None]) -> None:
    """Poll until the execution has ended."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not weekly.ended:
        if time.monotonic() > deadline:
            raise DemoFailed(f"The schedule's execution is {weekly.execution.get('status')}.")
        executions = weekly.operator.get(f"/schedules/{weekly.schedule}/executions/")["results"]
        weekly.execution = next(each for each in executions if each["id"] == weekly.execution["id"])
        weekly.jobs = _jobs(weekly)
        redraw()
        time.sleep(POLL_SECONDS)
    if weekly.execution["status"] != "success":
        raise DemoFailed(
            f"The schedule's execution is {weekly.execution['status']}: {weekly.execution['errors']}"
        )


def _jobs(weekly: Weekly) -> list[dict[str, Any]]:
    """Return the activities of the execution in the order of the rows."""
    activities = weekly.operator.get(
        "/activities/", schedule=weekly.schedule, created_after=weekly.execution["started_at"], limit=50
    )["results"]
    return sorted(
        activities,
        key=lambda activity: (activity["not_before"] or "", activity["created_at"], activity["id"]),
    )
