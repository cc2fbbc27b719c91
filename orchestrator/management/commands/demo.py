"""`manage.py demo`: a real pipeline on a real text, from nothing to the results, in one go."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console
from rich.live import Live

from orchestrator.demo import asking, display, scheduling, story
from orchestrator.demo.asking import Campaign
from orchestrator.demo.client import ApiClient, ApiRefused
from orchestrator.demo.scheduling import Weekly
from orchestrator.demo.story import Agency, DemoFailed
from orchestrator.embedded import EmbeddedError, ServiceHome
from orchestrator.local.stack import Addresses, LocalStack, stop_servers
from orchestrator.processes.errors import SupervisorError
from pipelines import definition
from tenants import tokens
from tenants.context import system_scope
from tenants.models import Role, Tenant

EXAMPLES = Path(settings.BASE_DIR) / "examples"
LONGEST_INPUT = 150_000  # Bytes; larger texts do not fit into one request.


class Command(BaseCommand):
    help = (
        "Run a content pipeline for two tenants, a campaign of agents that ask people, and a schedule over a table, "
        "on a text, and show what came of it."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--input",
            type=Path,
            default=EXAMPLES / "input" / "urban-beekeeping.md",
            help="the text to work on",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        console, began = Console(), time.monotonic()
        home = ServiceHome(settings.ORCHESTRATOR_HOME)
        stack = LocalStack(
            home=home,
            port=_free_port(settings.PORT),
            flower_port=_free_port(settings.FLOWER_PORT),
            tell=lambda line: console.print(f"[dim]{line}[/]"),
        )
        try:
            text = _read(options["input"])
            with stack.running() as (_, addresses):
                agencies = _agencies(addresses)
                _play(console, agencies, text)
                campaign = _campaign(agencies[0], text)
                _play_campaign(console, campaign)
                _tell_campaign(console, campaign)
                _play_schedule(console, agencies[0], text)
                _tell_results(console, agencies, home.path / "demo", addresses)
        except (DemoFailed, ApiRefused, EmbeddedError, SupervisorError) as error:
            raise CommandError(str(error)) from error
        finally:
            stop_servers(home, stack.tell)
        console.print(
            f"[bold green]Done in {time.monotonic() - began:.1f} s.[/] `make up` keeps everything running."
        )


def _read(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CommandError(
            f"{path} cannot be read: {error.strerror}. Give a text file with INPUT=path."
        ) from error
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CommandError(f"{path} is not UTF-8 text (byte {error.start}).") from error
    if not text.strip():
        raise CommandError(f"{path} is empty; there is nothing to write a brief about.")
    if len(raw) > LONGEST_INPUT:
        raise CommandError(f"{path} has {len(raw)} bytes; the demonstration takes at most {LONGEST_INPUT}.")
    return text.replace("\x00", "")


def _agencies(addresses: Addresses) -> list[Agency]:
    return [
        _agency("Agency North", "demo-north", addresses, note=story.NOTE),
        _agency("Agency South", "demo-south", addresses, note=None),
    ]


def _agency(name: str, slug: str, addresses: Addresses, *, note: str | None) -> Agency:
    with system_scope():
        tenant, _ = Tenant.objects.get_or_create(slug=slug, defaults={"name": name})
    _, operator = tokens.create(tenant, Role.ADMIN, "demo operator")
    _, editor = tokens.create(tenant, Role.REVIEWER, "demo editor")
    return Agency(name, ApiClient(addresses.web, operator), ApiClient(addresses.web, editor), note)


def _play(console: Console, agencies: list[Agency], text: str) -> None:
    path = EXAMPLES / "pipelines" / "content-brief.yaml"
    data = definition.load(path.read_text(encoding="utf-8"), filename=path.name)
    for agency in agencies:
        story.begin(agency, data, text)
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
        f"While `make up` runs: API {addresses.web}/api/v1/docs/ · admin {addresses.web}/admin/ · Flower {addresses.flower}"
    )


def _free_port(wanted: int) -> int:
    """The wanted port, or any other when somebody has it."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise CommandError("no free port on 127.0.0.1")
