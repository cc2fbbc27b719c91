"""What people read: an alert as one message, its outside text made harmless before any channel gets to see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self
from uuid import UUID

from django.conf import settings

from agents.excerpts import excerpt

# Written out: to make it from the table of addresses, a worker would have to load every page of the site.
PAGE = "/admin/activities/alert/{}/change/"
LONGEST_BODY = 4_000  # more is read where the alert is shown


@dataclass(frozen=True, slots=True)
class Message:
    """One alert for one channel. `title` is one line, `body` has line breaks and nothing else that does not print."""

    delivery_id: UUID
    alert_id: UUID
    kind: str
    severity: str
    title: str
    body: str
    activity_id: UUID | None
    facts: Mapping[str, Any]
    tenant: str  # its slug
    created_at: datetime
    link: str  # empty when there is no page that the receiver may see

    @classmethod
    def of(cls, claim: Any) -> Self:
        """From a row of `sql/claim_delivery.sql`."""
        return cls(
            delivery_id=claim.id,
            alert_id=claim.alert_id,
            kind=claim.kind,
            severity=claim.severity,
            title=excerpt(claim.title, limit=300),
            body=printable(claim.body),
            activity_id=claim.activity_id,
            facts=claim.facts,
            tenant=claim.tenant,
            created_at=claim.created_at,
            link="" if claim.channel_id else site() + PAGE.format(claim.alert_id),
        )

    @property
    def footer(self) -> str:
        """Where it comes from, in one line."""
        about = f", activity {self.activity_id}" if self.activity_id else ""
        return f"{self.kind}, tenant {self.tenant}{about}, {self.created_at:%Y-%m-%d %H:%M:%S} UTC"


def printable(text: str) -> str:
    """The text with its line breaks, but without control characters and marks that reverse its direction."""
    shown = "".join(character if character.isprintable() or character == "\n" else " " for character in text)
    shown = shown.strip()
    return shown if len(shown) <= LONGEST_BODY else shown[: LONGEST_BODY - 1] + "…"


def site() -> str:
    """Our own address, as others reach it."""
    return settings.ORCHESTRATOR_PUBLIC_URL.rstrip("/") or f"http://127.0.0.1:{settings.PORT}"
