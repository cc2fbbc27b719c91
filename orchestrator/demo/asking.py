"""The second act: agents that ask, and people who answer.

A planner finds the client's account disconnected and says so; somebody signs in again. It has keywords looked up by another agent, has
three posts prepared, and asks which direction they shall take. One decision of the editor wakes the planner and all three writers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from orchestrator.demo.client import ApiClient
from orchestrator.demo.story import PATIENCE_SECONDS, POLL_SECONDS, DemoFailed

KIND, ACCOUNT = "instagram", "The client's Instagram"
SIGNED_IN = "Signed in to the account again."
_ENDED = ("done", "approved", "failed", "needs_review", "cancelled")


@dataclass(slots=True)
class Campaign:
    """The planner's activity, everything that came of it, and what people did."""

    operator: ApiClient
    editor: ApiClient
    planner: str = ""
    channel: str = ""
    chosen: str = ""
    activities: dict[str, dict[str, Any]] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    @property
    def work(self) -> list[dict[str, Any]]:
        """The agents' activities in the order in which they began."""
        mine = [activity for activity in self.activities.values() if activity["assignee_type"] == "agent"]
        return sorted(mine, key=lambda activity: activity["created_at"])

    @property
    def ended(self) -> bool:
        return len(self.work) > 1 and all(activity["status"] in _ENDED for activity in self.work)


def begin(campaign: Campaign, text: str) -> None:
    """Connect an account whose authorisation will turn out to have lapsed, and ask for a calendar."""
    campaign.channel = _account(campaign.operator)["id"]
    planner = campaign.operator.post(
        "/activities/",
        {
            "name": "Social calendar",
            "description": "Plan this month's posts about the text.",
            "agent_role": "social-calendar-planner",
            "deliverable": str(uuid4()),
            "params": {"channel_id": campaign.channel},
            "input": {"content": text},
        },
    )
    campaign.planner = planner["id"]


def _account(operator: ApiClient) -> Any:
    """The client's account, from an earlier demonstration or new."""
    known = operator.get("/channels/", kind=KIND, search=ACCOUNT)["results"]
    return known[0] if known else operator.post("/channels/", {"kind": KIND, "name": ACCOUNT})


def follow(campaign: Campaign, show: Callable[[], None]) -> None:
    """Poll until everything has ended, answering what people are asked."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not campaign.ended:
        if time.monotonic() > deadline:
            raise DemoFailed(f"The campaign stands still: {campaign.log[-1:]}")
        _look(campaign)
        _answer(campaign)
        show()
        time.sleep(POLL_SECONDS)
    if wrong := [activity["name"] for activity in campaign.work if activity["status"] != "done"]:
        raise DemoFailed(f"The campaign did not go as told: {', '.join(wrong)} did not get done.")


def _look(campaign: Campaign) -> None:
    planner = campaign.operator.get(f"/activities/{campaign.planner}/")
    related = campaign.operator.get("/activities/", parent=campaign.planner, limit=50)["results"]
    campaign.activities = {activity["id"]: activity for activity in (planner, *related)}


def _answer(campaign: Campaign) -> None:
    items = campaign.editor.get("/inbox/", deliverable=campaign.activities[campaign.planner]["deliverable"])[
        "results"
    ]
    for item in items:
        if item["kind"] == "resolution":
            campaign.operator.post(f"/channels/{campaign.channel}/reactivate/")
            campaign.operator.post(f"/activities/{item['id']}/resolve/", {"note": SIGNED_IN})
            campaign.log.append(f"blocked: {item['name']} · resolved: {SIGNED_IN}")
        elif item["kind"] == "approval" and _everybody_waits(campaign):
            _choose(campaign, item)
        elif item["kind"] == "review" and campaign.chosen:
            # Each writer has asked for itself as well, and no answer answers another question.
            campaign.editor.post(
                f"/activities/{item['id']}/review/",
                {"approved": True, "feedback": f"Yes, as {campaign.chosen}."},
            )
            campaign.log.append(f"{item['name']}: approved")


def _everybody_waits(campaign: Campaign) -> bool:
    """Whether the planner and the writers that it has called wait for the decision."""
    writers = [activity for activity in campaign.work if activity["agent_role"] == "social-post-writer"]
    waiting = (*writers, campaign.activities[campaign.planner])
    return bool(writers) and all(activity["status"] == "awaiting_review" for activity in waiting)


def _choose(campaign: Campaign, item: dict[str, Any]) -> None:
    option = campaign.chosen = item["decision_rules"]["options"][0]
    decided = campaign.editor.post(
        f"/approvals/{item['id']}/decide/",
        {"decision": "approved", "chosen_option": option, "notes": "Keep it short and friendly."},
    )
    campaign.log.append(f"editor chose “{option}”: {len(decided['woken'])} activities woke")
