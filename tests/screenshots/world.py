"""The content of the pictures: an agency at work, with open questions, failures, budgets and schedules.

It is the demonstration of `make demo`, stopped at the questions to people, so that there is something to decide.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model

from orchestrator.demo import story
from orchestrator.demo.input_text import DEFAULT_INPUT, read_input
from orchestrator.demo.opening import agency_of, content_brief, find_free_port
from orchestrator.demo.story import ApiClient, Campaign, Weekly
from orchestrator.embedded import ServiceHome
from orchestrator.local import ADMIN, LocalStack
from tenants import registration
from tenants.context import system_scope, tenant_scope
from tenants.models import Membership, Role, Tenant

TENANT, MEMBER, NEWCOMER, PASSWORD = "northern-press", "anna", "nora", "a password for pictures"
NOBODY_LISTENS = "http://127.0.0.1:9/"
PATIENCE_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Scene:
    """The address, and the logins: a member of the tenant for the console, a superuser for the admin."""

    web: str
    member: tuple[str, str]
    superuser: tuple[str, str]
    newcomer: tuple[str, str]  # an admin of an empty tenant


@contextmanager
def running(tell: Callable[[str], None]) -> Iterator[Scene]:
    """Start everything, and fill it with the work of people."""
    stack = LocalStack(
        home=ServiceHome(settings.ORCHESTRATOR_HOME),
        port=find_free_port(settings.PORT),
        flower_port=find_free_port(settings.FLOWER_PORT),
        report=tell,
    )
    with stack.running() as (_, addresses):
        tell("Letting the agents work")
        agency = agency_of("Northern Press", TENANT, addresses, note=story.NOTE)
        with system_scope():
            _member(MEMBER, Tenant.objects.get(slug=TENANT))
        _member(NEWCOMER, registration.register("newsroom", name="Newsroom"))
        _play(agency)
        yield Scene(
            addresses.web, (MEMBER, PASSWORD), (ADMIN, addresses.admin_password), (NEWCOMER, PASSWORD)
        )


def _member(name: str, tenant: Tenant) -> None:
    user = get_user_model().objects.create_user(name, password=PASSWORD)
    with tenant_scope(tenant.pk):
        Membership.objects.create(tenant=tenant, user=user, role=Role.ADMIN)


def _play(agency: story.Agency) -> None:
    """Play a run to its end, another up to the editor's second decision, and create other open questions."""
    text = read_input(DEFAULT_INPUT)
    api = agency.operator
    _settings(api)
    story.begin_run(agency, content_brief(), text)
    api.post("/deliverables/", {"key": "blog", "name": "Blog articles", "pipelines": ["content-brief"]})
    story.follow_runs([agency], lambda: None)
    story.begin_campaign(campaign := Campaign(api, agency.editor), text)
    story.follow_campaign(campaign, lambda: None)
    story.begin_weekly(weekly := Weekly(api), text)
    story.follow_weekly(weekly, lambda: None)
    _open_questions(agency, text)
    _failures(api)


def _settings(api: ApiClient) -> None:
    api.post("/budgets/", {"name": "Everything this month", "cap": 50, "period": "month"})
    api.post("/budgets/", {"name": "Runs of a day", "cap": 500, "unit": "runs", "period": "day"})
    api.post(
        "/skills/", {"key": "tone", "name": "Tone of the house", "content": "Short sentences. No jokes."}
    )
    api.post("/webhooks/", {"url": "https://hooks.example.com/board", "description": "The board"})
    api.post(
        "/notification-channels/",
        {"kind": "email", "name": "Editors on call", "target": "editors@example.com"},
    )
    api.post("/templates/", {"key": "summary", "name": "Summary", "agent_role": "report-writer"})


def _open_questions(agency: story.Agency, text: str) -> None:
    api = agency.operator
    run = api.post("/pipelines/content-brief/runs/", {"input": {"content": text}})
    gate = _wait_for(lambda: _items(agency.editor, run["id"]))
    agency.editor.post(f"/activities/{gate['id']}/reject/", {"notes": story.NOTE})
    _wait_for(lambda: [item for item in _items(agency.editor, run["id"]) if item["id"] != gate["id"]])
    story.begin_campaign(campaign := Campaign(api, agency.editor), text)
    _wait_for(lambda: api.get("/activities/", parent=campaign.planner)["results"])
    api.post(
        "/activities/",
        {
            "name": "Call the beekeepers' society",
            "human_role": "editor",
            "description": "Ask who may be quoted.",
        },
    )
    api.post(
        "/approvals/",
        {
            "type": "content_direction",
            "title": "Which picture on the front page?",
            "options": ["Hive", "Balcony"],
        },
    )


def _failures(api: ApiClient) -> None:
    """Create work that fails permanently, in two groups, work that waits, and a paused queue."""
    for role, message in (("seo", "Audit the shop"), ("qa", "Check the links")):
        api.put(f"/agent-configs/{role}/", {"endpoint": NOBODY_LISTENS, "retry": {"max_attempts": 1}})
        for page in ("front", "archive"):
            api.post("/activities/", {"name": f"{message}: {page}", "agent_role": role})
    api.post(
        "/activities/",
        {"name": "Letter to readers", "agent_role": "email-writer", "not_before": "2031-05-01T06:00:00Z"},
    )
    api.post("/queues/dev/pause/")
    api.post("/activities/", {"name": "Mend the feed", "agent_role": "dev"})
    _wait_for(lambda: len(api.get("/dead-letters/")["results"]) >= 4)


def _items(editor: ApiClient, run: str) -> list[dict[str, Any]]:
    return [item for item in editor.get("/inbox/")["results"] if item["pipeline_run"] == run]


def _wait_for(look: Callable[[], Any]) -> Any:
    """Wait until there is a result, and return it, or the first of a list."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (result := look()):
        if time.monotonic() > deadline:
            raise TimeoutError("the content of the pictures was not ready in time")
        time.sleep(0.2)
    return result[0] if isinstance(result, list) else result
