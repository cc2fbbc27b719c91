"""`manage.py check_invariants [--json] [--quiesced] [--since WHEN]`: whether everything that must hold does hold."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

import redis
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from activities.maintenance import invariants
from activities.maintenance.invariants import LIVENESS, SAFETY, Report, Violation
from tenants import clock

SHOWN = 5  # ids per line; --json has more
UNREACHABLE = 2  # exit status: nothing was checked
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Command(BaseCommand):
    help = (
        "Check every invariant against one snapshot of the database, changing nothing. "
        "Exits 0 when all hold, and 1, naming rows, when not. What could not be checked is named and is no failure."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="one JSON object instead of lines for people")
        parser.add_argument(
            "--quiesced",
            action="store_true",
            help="also check that nothing is stuck; holds about a minute after the last fault, when things have come to rest",
        )
        parser.add_argument(
            "--since",
            type=_moment,
            metavar="WHEN",
            help="also check the caps over runs started after this: 90s, 10m, 2h, 1d, or a time in ISO 8601",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            report = invariants.examine(quiesced=options["quiesced"], since=options["since"])
        except DatabaseError as error:
            raise CommandError(
                f"Nothing was checked, PostgreSQL did not answer: {error}", returncode=UNREACHABLE
            ) from error
        self._remember(report)
        if options["json"]:
            self.stdout.write(json.dumps(_document(report), indent=2))
        else:
            self._tell(report)
        if report.violations:
            raise SystemExit(1)

    def _remember(self, report: Report) -> None:
        try:
            invariants.remember(report)
        except redis.RedisError as error:
            self.stderr.write(
                f"The outcome is not kept for the metrics: Redis does not answer ({type(error).__name__})."
            )

    def _tell(self, report: Report) -> None:
        broken = {violation.invariant: violation for violation in report.violations}
        for invariant, description in sorted((SAFETY | LIVENESS).items()):
            if invariant in broken:
                violation = broken[invariant]
                self.stdout.write(f"{invariant}  BROKEN  {description}")
                self.stdout.write(f"             {violation.count}: {_some(violation)}")
            elif invariant in report.held:
                self.stdout.write(f"{invariant}  ok      {description}")
            elif invariant in report.not_checked:
                self.stdout.write(f"{invariant}  -       {description} ({report.not_checked[invariant]})")
        self.stdout.write(_summary(report))


def _some(violation: Violation) -> str:
    more = violation.count - SHOWN
    return ", ".join(violation.sample_ids[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _summary(report: Report) -> str:
    checked = len(report.held) + len(report.violations)
    unchecked = f"; {len(report.not_checked)} not checked" if report.not_checked else ""
    if report.violations:
        names = ", ".join(violation.invariant for violation in report.violations)
        return f"BROKEN: {len(report.violations)} of {checked} invariants do not hold ({names}){unchecked}, in {report.seconds:.1f} s."
    return f"All {checked} invariants hold{unchecked}, in {report.seconds:.1f} s."


def _document(report: Report) -> dict[str, Any]:
    return {
        "ok": not report.violations,
        "violations": [asdict(violation) for violation in report.violations],
        "held": report.held,
        "not_checked": report.not_checked,
        "seconds": round(report.seconds, 3),
    }


def _moment(text: str) -> datetime:
    """A time, or how long ago it was."""
    if ago := re.fullmatch(r"(\d{1,6})([smhd])", text):
        return clock.now() - timedelta(**{UNITS[ago[2]]: int(ago[1])})
    try:
        found = parse_datetime(text)
    except ValueError:
        found = None
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a duration such as 90s, 10m, 2h or 1d nor a time in ISO 8601"
        )
    return found if found.tzinfo else timezone.make_aware(found)
