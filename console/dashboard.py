"""The start of the admin: how things stand for whoever looks, with the way to the console's page for each figure.

Figures are counts. For superusers they count every tenant's work, as the console's overview does; for members of tenants theirs. Names,
such as those of schedules, are only of tenants that the request may see.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest

from agents.governor import overview as governor
from agents.governor.overview import ProviderRow
from console.overview import Overview, overview, overview_within
from pipelines.models import Schedule
from tenants import admin_scope
from tenants.admin_scope import Sight

COMING = 6  # schedules that are named


@dataclass(frozen=True, slots=True)
class Board:
    """What the page shows. `breakers` are providers that are left alone now; None when they are not the reader's to see."""

    overview: Overview
    coming: Sequence[Schedule]
    breakers: Sequence[ProviderRow] | None
    sees_all: bool


def fill(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """The theme's DASHBOARD_CALLBACK."""
    return {**context, "title": "Dashboard", "board": board(admin_scope.of_request(request))}


def board(seen: Sight) -> Board:
    """For what somebody sees, within the scope of their request."""
    return Board(
        overview=overview(None) if seen.platform else overview_within(nullcontext()),
        coming=_coming(),
        breakers=_left_alone() if seen.platform else None,
        sees_all=seen.everything or not seen.platform,
    )


def _coming() -> list[Schedule]:
    enabled = Schedule.objects.filter(enabled=True, next_run_at__isnull=False)
    return list(enabled.select_related("tenant").order_by("next_run_at", "pk")[:COMING])


def _left_alone() -> list[ProviderRow]:
    return [each for each in governor.of_platform() if each.state in ("breaker_open", "retry_after")]
