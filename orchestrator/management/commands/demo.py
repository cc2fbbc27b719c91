"""`manage.py demo`: runs real pipelines on a text, from an empty system to the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live

from orchestrator.demo import display, story
from orchestrator.demo.opening import Demonstration, agency_of, content_brief
from orchestrator.demo.story import Agency, Campaign, Weekly
from orchestrator.local import ADMIN, Addresses, LocalStack
from orchestrator.processes import Supervisor


class Command(Demonstration):
    help = (
        "Run a content pipeline for two tenants, a campaign of agents that ask people, and a schedule over a table, "
        "on a text, and show the results."
    )
    farewell = "`make up` keeps everything running; docs/tutorial.md continues from there."

    def play(
        self, console: Console, stack: LocalStack, supervisor: Supervisor, addresses: Addresses, text: str
    ) -> None:
        agencies = [
            agency_of("Agency North", "demo-north", addresses, note=story.NOTE),
            agency_of("Agency South", "demo-south", addresses, note=None),
        ]
        stack.report(
            "Two agencies run a pipeline: keywords, a brief that an editor reviews, an outline and an audit"
        )
        self._play_pipeline(console, agencies, text)
        stack.report("Agents prepare a campaign and ask people")
        campaign = Campaign(agencies[0].operator, agencies[0].editor)
        self._play_campaign(console, campaign, text)
        stack.report("A schedule makes a job from every row of a table")
        weekly = Weekly(agencies[0].operator)
        story.begin_weekly(weekly, text)
        if self.verbose:
            console.print(display.plan_of(weekly))
        with self._screen(console, display.weekly_live(weekly)) as screen:
            story.follow_weekly(weekly, lambda: screen.update(display.weekly_live(weekly)))
        folder = stack.home.path / "demo"
        folder.mkdir(parents=True, exist_ok=True)
        outputs = [_outputs(agency, folder) for agency in agencies]
        if self.verbose:
            for agency, its_outputs in zip(agencies, outputs, strict=True):
                display.results(console, agency, its_outputs)
        else:
            _print_summary(console, agencies, outputs, campaign, weekly)
        console.print(f"All outputs and diagrams of the runs: {folder}", soft_wrap=True)
        console.print(
            f"`make up` shows everything: console {addresses.web}/ (login {ADMIN}, password {addresses.admin_password})"
            f" · admin {addresses.web}/admin/ · API {addresses.web}/api/v1/docs/ · Flower {addresses.flower}",
            soft_wrap=True,
        )
        for agency in agencies:
            agency.operator.close()
            agency.editor.close()

    def _play_pipeline(self, console: Console, agencies: list[Agency], text: str) -> None:
        for agency in agencies:
            story.begin_run(agency, content_brief(), text)
        with self._screen(console, display.live(agencies)) as screen:
            story.follow_runs(agencies, lambda: screen.update(display.live(agencies)))

    def _play_campaign(self, console: Console, campaign: Campaign, text: str) -> None:
        story.begin_campaign(campaign, text)
        with self._screen(console, display.campaign_live(campaign)) as screen:
            story.follow_campaign(campaign, lambda: screen.update(display.campaign_live(campaign)))
        for activity in campaign.work if self.verbose else ():
            if activity["agent_role"] != "keyword-researcher":
                output = campaign.operator.get(f"/activities/{activity['id']}/output/")
                title = f"{activity['name']} · {activity['status']}"
                display.print_output(console, title, output.get("content") or "")

    def _screen(self, console: Console, first: RenderableType) -> Live:
        """Return a live display. The summary replaces it, unless the command is verbose."""
        return Live(first, console=console, refresh_per_second=8, transient=not self.verbose)


def _outputs(agency: Agency, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the outputs of the agency's activities, and write them to files, with the diagram of the run."""
    outputs: dict[str, dict[str, Any]] = {}
    subfolder = folder / agency.name.lower().replace(" ", "-")
    subfolder.mkdir(exist_ok=True)
    for number, activity in enumerate(story.work_of(agency), 1):
        if activity["output_ref"]:
            output = outputs[activity["id"]] = agency.operator.get(f"/activities/{activity['id']}/output/")
            name = f"{number}-{activity['step']}-round-{activity['round']}.md"
            (subfolder / name).write_text(output.get("content") or "", encoding="utf-8")
    picture = agency.operator.text(f"/pipeline-runs/{agency.run['id']}/picture/")
    (subfolder / "run.svg").write_text(picture, encoding="utf-8")
    return outputs


def _print_summary(
    console: Console,
    agencies: list[Agency],
    outputs: list[dict[str, Any]],
    campaign: Campaign,
    weekly: Weekly,
) -> None:
    for agency, its_outputs in zip(agencies, outputs, strict=True):
        console.print(display.summary(agency, its_outputs))
    console.print(display.campaign_summary(campaign))
    console.print(display.weekly_summary(weekly))
