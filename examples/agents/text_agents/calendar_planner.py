"""The social calendar planner: asks for what it cannot know, then plans a post for every network.

It needs a working connection to the client's account, the keywords of the text, and a direction that people choose. It requests them with
tools, one after the other. In between it does not run.
"""

from __future__ import annotations

import re

from . import tools
from .job import Answer, Job
from .tools import reporter_of, waiting
from .words import one_line

OFFERED = 3  # directions
NETWORKS = ("instagram", "linkedin", "newsletter")
_ROW = re.compile(r"^\| *\d+ *\| *([^|\n]+?) *\|", re.MULTILINE)  # of the researcher's table: number, phrase


def plan(job: Job) -> Answer:
    """The skill: returns a calendar when everything is known, and uses a tool until then."""
    if direction := tools.chosen_direction(job):
        return _calendar(job, direction)
    if job.wake_reason == "subtask_completed":
        return _ask_for_direction(job)
    if job.wake_reason == "unblocked" or not job.params.get("channel_id"):
        return _ask_for_keywords(job)
    return _report_expired_channel(job)


def _report_expired_channel(job: Job) -> Answer:
    return waiting(
        reporter_of(job).use(
            "report_blocker",
            type="channel_auth_expired",
            message="The connection to the client's Instagram account has expired. Please sign in again.",
            channel_id=job.word("channel_id"),
        )
    )


def _ask_for_keywords(job: Job) -> Answer:
    return waiting(
        reporter_of(job).use(
            "create_subtask",
            name="Keywords for the calendar",
            description="Find the phrases that the text is about.",
            agent_role="keyword-researcher",
            params={"text": job.text, "limit": 10},
            blocking=True,
        )
    )


def _ask_for_direction(job: Job) -> Answer:
    """Create a subtask for each post, and one approval that all of them wait for."""
    reporter = reporter_of(job)
    posts = [
        reporter.use(
            "create_subtask",
            name=f"Post for {network}",
            description=f"Write a post for {network} in the direction that is chosen.",
            agent_role="social-post-writer",
            params={"network": network, "text": job.text},
            blocking=False,
        )["id"]
        for network in NETWORKS
    ]
    return waiting(
        reporter.use(
            "create_approval",
            type="content_direction",
            title="Which direction shall this month's posts take?",
            description="The three phrases that stand out most in the text.",
            options=_directions(job),
            activity_ids=[*posts, job.job_id],
            human_role="editor",
        )
    )


def _directions(job: Job) -> list[str]:
    """Return the best phrases of the subtask's table, which is in the prompt."""
    phrases = [one_line(phrase) for phrase in _ROW.findall(job.prompt)]
    return list(dict.fromkeys(phrases))[:OFFERED] or ["The story of the text", "A question to the readers"]


def _calendar(job: Job, direction: str) -> Answer:
    lines = [f"# Calendar: {direction}", "", "| week | network | what |", "|--:|---|---|"]
    lines += [f"| {week} | {network} | {direction} |" for week, network in enumerate(NETWORKS, start=1)]
    return Answer("\n".join([*lines, ""]), {"direction": direction, "networks": list(NETWORKS)})
