"""`manage.py schedules`: lists the schedules of a tenant in words, with their next times."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from orchestrator.cli import TerminalCommand, count_up_to
from pipelines import timing
from pipelines.models import Schedule
from pipelines.schedules import preview
from tenants.context import tenant_scope
from tenants.management.base import owner_of


class Command(TerminalCommand):
    help = "List the schedules of a tenant: when they run in words, what they run, and their next times."
    examples = (
        "schedules --tenant acme",
        "schedules --tenant acme --count 5",
        "schedules --tenant acme --json",
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--count",
            type=count_up_to(preview.MOST),
            default=2,
            metavar="N",
            help="number of next times (default: %(default)s)",
        )
        super().add_arguments(parser)

    def query(self, *, tenant: str | None, count: int, **options: Any) -> dict[str, Any]:
        owner = owner_of(tenant)
        with tenant_scope(owner.pk):
            rows = Schedule.objects.for_tenant(owner.pk).select_related("pipeline").order_by("name", "pk")
            return {"tenant": owner.slug, "schedules": [_describe_schedule(row, count) for row in rows]}

    def render(self, result: dict[str, Any]) -> None:
        rows = [
            (
                each["name"], "on" if each["enabled"] else "off", each["in_words"], each["timezone"], each["target"],
                ", ".join(f"{at:%Y-%m-%d %H:%M:%SZ}" for at in each["fires_at"]),
            )
            for each in result["schedules"]
        ]  # fmt: skip
        self.write_table(("name", "state", "when", "time zone", "runs", "next times"), rows)


def _describe_schedule(schedule: Schedule, count: int) -> dict[str, Any]:
    try:
        words = timing.in_words(schedule.timing())
        fires_at = (
            preview.next_times(schedule, count=count) if schedule.enabled and schedule.next_run_at else []
        )
    except timing.TimingError as error:
        words, fires_at = f"invalid: {error}", []
    return {
        "id": schedule.pk,
        "name": schedule.name,
        "enabled": schedule.enabled,
        "in_words": words,
        "timezone": schedule.timezone,
        "target": schedule.agent_role
        or f"pipeline {schedule.pipeline.key if schedule.pipeline else ''}".strip(),
        "next_run_at": schedule.next_run_at,
        "fires_at": fires_at,
    }
