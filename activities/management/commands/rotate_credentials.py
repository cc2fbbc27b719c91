"""`manage.py rotate_credentials [--dry-run]`: encrypts every stored secret with the newest key of FIELD_ENCRYPTION_KEYS.

Each row is updated by compare-and-set, so a secret that is replaced meanwhile stays replaced. An interrupted rotation can be run again,
because it skips what the newest key has encrypted. Decrypted secrets exist in memory only.
"""

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
    help = "Encrypt every stored secret with the newest key. After that older keys can be removed from FIELD_ENCRYPTION_KEYS."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="only print what would be encrypted again")

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(f"The newest key is {credentials.newest_key()!r}.")
        if not options["dry_run"]:
            audit.record_command("rotate_credentials", detail={"key": credentials.newest_key()})
        unreadable = [line for place in PLACES for line in self._rotate(place, options["dry_run"])]
        if unreadable:
            lines = "\n".join(f"  {line}" for line in unreadable)
            raise CommandError(
                f"These could not be decrypted; set them again before you remove a key:\n{lines}"
            )
        self.stdout.write(
            "Nothing was changed." if options["dry_run"] else "Everything is encrypted with the newest key."
        )

    def _rotate(self, place: Place, dry_run: bool) -> list[str]:
        progress = Progress(place.name)
        for progress in rotate(place, dry_run=dry_run):
            if progress.total and progress.total % PAGE == 0:
                self.stdout.write(f"{place.name}: {progress.total} so far")
        verb = "would be encrypted again" if dry_run else "encrypted again"
        self.stdout.write(
            f"{place.name}: {progress.resealed} {verb}, {progress.current} with the newest key already,"
            f" {len(progress.unreadable)} cannot be decrypted"
        )
        return [f"{place.name}: {key}" for key in progress.unreadable]


PAGE = 200


@dataclass(frozen=True, slots=True)
class Place:
    """A column with encrypted secrets, and the encryption context of each row."""

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
    """Counts of the rows of one place. `unreadable` lists those whose key is gone, or whose context does not match."""

    place: str
    total: int = 0
    current: int = 0
    resealed: int = 0
    unreadable: list[str] = field(default_factory=list)


def rotate(place: Place, *, dry_run: bool = False) -> Iterator[Progress]:
    """Encrypt the secrets of a place again. Yields the progress after each page and at the end. A dry run decrypts but writes nothing."""
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
        resealed = credentials.reseal(sealed, context=place.context(row))
    except ConfigurationError:
        progress.unreadable.append(str(row.pk))
        return
    progress.resealed += 1
    if not dry_run:
        with system_scope():
            place.rows().filter(Q(pk=row.pk), Q(**{place.column: sealed})).update(**{place.column: resealed})
