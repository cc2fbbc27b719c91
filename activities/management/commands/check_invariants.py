"""`manage.py check_invariants [--json] [--quiesced] [--since WHEN]`: checks all invariants, and exits 1 if one is violated."""

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
from tenants import clock, outages

MOST_IDS = 5  # per line; --json has more
UNREACHABLE = 2  # exit status: nothing was checked
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Command(BaseCommand):
    help = (
        "Check every invariant against one snapshot of the database, without changing anything. Exits 0 if all hold, and 1 "
        "if one is violated, with ids of rows. Checks that could not run are listed and do not count as failures."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
        parser.add_argument(
            "--quiesced",
            action="store_true",
            help="also check that nothing is stuck; valid from about a minute after the last fault, when the system is at rest",
        )
        parser.add_argument(
            "--since",
            type=_time,
            metavar="WHEN",
            help="also check the caps over runs that started after this: 90s, 10m, 2h, 1d, or a time in ISO 8601",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            report = invariants.examine(quiesced=options["quiesced"], since=options["since"])
        except DatabaseError as error:
            raise CommandError(
                f"Nothing was checked. {outages.reason_of(error) or error}", returncode=UNREACHABLE
            ) from error
        self._store_outcome(report)
        if options["json"]:
            self.stdout.write(json.dumps(_document(report), indent=2))
        else:
            self._print(report)
        if report.violations:
            raise SystemExit(1)

    def _store_outcome(self, report: Report) -> None:
        try:
            invariants.store_outcome(report)
        except redis.RedisError as error:
            self.stderr.write(
                f"Could not store the outcome for the metrics: Redis does not answer ({type(error).__name__})."
            )

    def _print(self, report: Report) -> None:
        broken = {violation.invariant: violation for violation in report.violations}
        for invariant, description in sorted((SAFETY | LIVENESS).items()):
            if invariant in broken:
                violation = broken[invariant]
                self.stdout.write(f"{invariant}  BROKEN  {description}")
                self.stdout.write(f"             {violation.count}: {_list_ids(violation)}")
            elif invariant in report.held:
                self.stdout.write(f"{invariant}  ok      {description}")
            elif invariant in report.not_checked:
                self.stdout.write(f"{invariant}  -       {description} ({report.not_checked[invariant]})")
        self.stdout.write(_summary(report))


def _list_ids(violation: Violation) -> str:
    more = violation.count - MOST_IDS
    return ", ".join(violation.sample_ids[:MOST_IDS]) + (f" and {more} more" if more > 0 else "")


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


def _time(text: str) -> datetime:
    """Parse a time, or a duration before now."""
    try:
        if ago := re.fullmatch(r"(\d{1,6})([smhd])", text):
            return clock.now() - timedelta(**{UNITS[ago[2]]: int(ago[1])})
        time = parse_datetime(text)
    except (ValueError, OverflowError):
        time = None
    if time is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a duration such as 90s, 10m, 2h or 1d nor a time in ISO 8601"
        )
    return time if time.tzinfo else timezone.make_aware(time)
