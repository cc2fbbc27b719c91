"""`manage.py demo`: a real pipeline on a real text, from nothing to the results, in one go."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.live import Live

from orchestrator.demo import asking, display, scheduling, story
from orchestrator.demo.asking import Campaign
from orchestrator.demo.opening import Demonstration, agency_of, content_brief
from orchestrator.demo.scheduling import Weekly
from orchestrator.demo.story import Agency
from orchestrator.local.stack import ADMIN, Addresses, LocalStack
from orchestrator.processes import Supervisor


class Command(Demonstration):
    help = (
        "Run a content pipeline for two tenants, a campaign of agents that ask people, and a schedule over a table, "
        "on a text, and show what came of it."
    )
    farewell = "`make up` keeps everything running."

    def play(
        self, console: Console, stack: LocalStack, supervisor: Supervisor, addresses: Addresses, text: str
    ) -> None:
        agencies = _agencies(addresses)
        _play(console, agencies, text)
        campaign = _campaign(agencies[0], text)
        _play_campaign(console, campaign)
        _tell_campaign(console, campaign)
        _play_schedule(console, agencies[0], text)
        _tell_results(console, agencies, stack.home.path / "demo", addresses)


def _agencies(addresses: Addresses) -> list[Agency]:
    return [
        agency_of("Agency North", "demo-north", addresses, note=story.NOTE),
        agency_of("Agency South", "demo-south", addresses, note=None),
    ]


def _play(console: Console, agencies: list[Agency], text: str) -> None:
    for agency in agencies:
        story.begin(agency, content_brief(), text)
    with Live(display.live(agencies), console=console, refresh_per_second=8) as screen:
        story.follow(agencies, lambda: screen.update(display.live(agencies)))


def _campaign(agency: Agency, text: str) -> Campaign:
    campaign = Campaign(agency.operator, agency.editor)
    asking.begin(campaign, text)
    return campaign


def _play_campaign(console: Console, campaign: Campaign) -> None:
    with Live(display.campaign_live(campaign), console=console, refresh_per_second=8) as screen:
        asking.follow(campaign, lambda: screen.update(display.campaign_live(campaign)))


def _tell_campaign(console: Console, campaign: Campaign) -> None:
    for activity in campaign.work:
        if activity["agent_role"] != "keyword-researcher":
            output = campaign.operator.get(f"/activities/{activity['id']}/output/")
            display.output_of(
                console, f"{activity['name']} · {activity['status']}", output.get("content") or ""
            )


def _play_schedule(console: Console, agency: Agency, text: str) -> None:
    weekly = Weekly(agency.operator)
    scheduling.begin(weekly, text)
    console.print(display.plan_of(weekly))
    with Live(display.weekly_live(weekly), console=console, refresh_per_second=8) as screen:
        scheduling.follow(weekly, lambda: screen.update(display.weekly_live(weekly)))


def _tell_results(console: Console, agencies: list[Agency], folder: Path, addresses: Addresses) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for agency in agencies:
        outputs = {
            activity["id"]: agency.operator.get(f"/activities/{activity['id']}/output/")
            for activity in story.work_of(agency)
            if activity["output_ref"]
        }
        display.results(console, agency, outputs)
    console.print(display.table(agencies))
    for agency in agencies:
        picture = folder / f"{agency.run['id']}.svg"
        picture.write_text(
            agency.operator.text(f"/pipeline-runs/{agency.run['id']}/picture/"), encoding="utf-8"
        )
        console.print(f"{agency.name}: {'; '.join(agency.log)}")
        console.print(f"  picture of the run: {picture}", soft_wrap=True)
        agency.operator.close()
        agency.editor.close()
    console.print(
        f"`make up` shows all of it: console {addresses.web}/ (login {ADMIN}, password {addresses.admin_password})"
        f" · admin {addresses.web}/admin/ · API {addresses.web}/api/v1/docs/ · Flower {addresses.flower}",
        soft_wrap=True,
    )
