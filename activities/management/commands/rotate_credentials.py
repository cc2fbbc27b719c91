"""`manage.py rotate_credentials [--dry-run]`: seals every stored secret with the newest key of FIELD_ENCRYPTION_KEYS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import Q, QuerySet

from activities.models import NotificationChannel
from activities.notifications import backends, webhooks
from agents import credentials
from agents.exceptions import ConfigurationError
from agents.models import Agent, AgentConfig
from tenants import audit
from tenants.context import system_scope
from tenants.models import SecondFactor
from tenants.models.events import WebhookEndpoint


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
        unopened = [line for place in PLACES for line in self._rotate(place, options["dry_run"])]
        if unopened:
            listed = "\n".join(f"  {line}" for line in unopened)
            raise CommandError(f"These could not be opened; set them anew before you remove a key:\n{listed}")
        self.stdout.write(
            "Nothing was changed." if options["dry_run"] else "Everything is sealed with the newest key."
        )

    def _rotate(self, place: Place, dry_run: bool) -> list[str]:
        progress = Progress(place.name)
        for progress in rotate(place, dry_run=dry_run):
            if progress.total and progress.total % PAGE == 0:
                self.stdout.write(f"{place.name}: {progress.total} so far")
        verb = "would be sealed anew" if dry_run else "sealed anew"
        self.stdout.write(
            f"{place.name}: {progress.resealed} {verb}, {progress.current} with the newest key already,"
            f" {len(progress.unopened)} cannot be opened"
        )
        return [f"{place.name}: {key}" for key in progress.unopened]


# Rotation of keys: secrets that an older key of the ring has sealed are sealed again with the newest.
#
# Each row by itself, by compare-and-set: a secret that somebody replaces meanwhile stays replaced, and a rotation that was broken off goes
# on where it was, since what is sealed with the newest key is passed over. Secrets are opened in memory alone.

PAGE = 200


@dataclass(frozen=True, slots=True)
class Place:
    """Where sealed secrets are: a column, and the context that each row's are bound to."""

    name: str
    rows: Callable[[], QuerySet[Any]]
    column: str
    context: Callable[[Any], str]


#: Every column that `credentials.seal` fills. A test compares it with the models.
PLACES = (
    Place(
        "credentials of the registry",
        lambda: Agent.objects.filter(),
        "auth_sealed",
        lambda row: credentials.agent_context(row.role),
    ),
    Place(
        "credentials of tenants' agents",
        lambda: AgentConfig.objects.filter(),
        "auth_sealed",
        lambda row: credentials.config_context(row.tenant_id, row.agent_id),
    ),
    Place(
        "secrets that sign for tenants' agents",
        lambda: AgentConfig.objects.filter(),
        "signing_sealed",
        lambda row: credentials.signing_context(row.tenant_id, row.agent_id),
    ),
    Place(
        "targets of notification channels",
        lambda: NotificationChannel.objects.filter(),
        "target_sealed",
        lambda row: backends.context_of(row.tenant_id, row.pk),
    ),
    Place(
        "secrets of webhooks",
        lambda: WebhookEndpoint.objects.filter(),
        "secret_sealed",
        lambda row: webhooks.context_of(row.tenant_id, row.pk),
    ),
    Place(
        "second factors of people",
        lambda: SecondFactor.objects.filter(),
        "secret_sealed",
        lambda row: credentials.person_context(row.pk),
    ),
)


@dataclass(slots=True)
class Progress:
    """What became of the rows of one place. `unopened` names those whose key is gone or that were sealed for another place."""

    place: str
    total: int = 0
    current: int = 0
    resealed: int = 0
    unopened: list[str] = field(default_factory=list)


def rotate(place: Place, *, dry_run: bool = False) -> Iterator[Progress]:
    """Seal the secrets of a place again; how far it is after each page, and at the end. A dry run opens everything and writes nothing."""
    progress, after = Progress(place.name), None
    while rows := _page(place, after):
        for row in rows:
            _reseal(place, row, progress, dry_run=dry_run)
        after = rows[-1].pk
        yield progress
    yield progress


def _page(place: Place, after: Any) -> list[Any]:
    with system_scope():
        rows = place.rows().exclude(**{place.column: ""}).order_by("pk")
        return list((rows if after is None else rows.filter(pk__gt=after))[:PAGE])


def _reseal(place: Place, row: Any, progress: Progress, *, dry_run: bool) -> None:
    progress.total += 1
    sealed = getattr(row, place.column)
    try:
        if credentials.is_current(sealed):
            credentials.unseal(sealed, context=place.context(row))
            progress.current += 1
            return
        anew = credentials.reseal(sealed, context=place.context(row))
    except ConfigurationError:
        progress.unopened.append(str(row.pk))
        return
    progress.resealed += 1
    if not dry_run:
        with system_scope():
            place.rows().filter(Q(pk=row.pk), Q(**{place.column: sealed})).update(**{place.column: anew})
