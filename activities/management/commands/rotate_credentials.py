"""`manage.py rotate_credentials [--dry-run]`: seals every stored secret with the newest key of FIELD_ENCRYPTION_KEYS."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from activities.maintenance import key_rotation
from activities.maintenance.key_rotation import Progress
from agents import credentials
from tenants import audit


class Command(BaseCommand):
    help = "Seals every stored secret with the newest key, after which older keys can be taken off FIELD_ENCRYPTION_KEYS."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--dry-run", action="store_true", help="Say what would be sealed, and change nothing."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(f"The newest key is {credentials.newest_key()!r}.")
        if not options["dry_run"]:
            audit.record_command("rotate_credentials", detail={"key": credentials.newest_key()})
        unopened = [
            line for place in key_rotation.PLACES for line in self._rotated(place, options["dry_run"])
        ]
        if unopened:
            listed = "\n".join(f"  {line}" for line in unopened)
            raise CommandError(f"These could not be opened; set them anew before you remove a key:\n{listed}")
        self.stdout.write(
            "Nothing was changed." if options["dry_run"] else "Everything is sealed with the newest key."
        )

    def _rotated(self, place: key_rotation.Place, dry_run: bool) -> list[str]:
        progress = Progress(place.name)
        for progress in key_rotation.rotate(place, dry_run=dry_run):
            if progress.total and progress.total % key_rotation.PAGE == 0:
                self.stdout.write(f"{place.name}: {progress.total} so far")
        verb = "would be sealed anew" if dry_run else "sealed anew"
        self.stdout.write(
            f"{place.name}: {progress.resealed} {verb}, {progress.current} with the newest key already,"
            f" {len(progress.unopened)} cannot be opened"
        )
        return [f"{place.name}: {key}" for key in progress.unopened]
