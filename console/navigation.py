"""The menu of the console, and links between pages of the console and the admin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Model
from django.urls import NoReverseMatch, reverse
from django.utils.http import urlencode


@dataclass(frozen=True, slots=True)
class Page:
    name: str  # of its URL, and the `here` of its views
    words: str
    key: str  # the keyboard shortcut after a `g`
    strokes: str  # the path of its icon, on a square of 24
    search: str = ""  # the query parameter of its search; empty if it has none

    @property
    def address(self) -> str:
        return reverse(f"console:{self.name}")


#: By the heading of the group, in the order of the menu.
PAGES: Mapping[str, tuple[Page, ...]] = {
    "Work": (
        Page("home", "Overview", "o", "M4 14a8 8 0 0 1 16 0M12 14l3.5-4M4 18.5h16"),
        Page("inbox", "Inbox", "i", "M4 13 6.5 5h11L20 13v6H4ZM4 13h5l1 2.5h4l1-2.5h5", search="search"),
        Page(
            "activities", "Activities", "a",
            "m4 6.5 1.3 1.3 2.5-2.6M4 13l1.3 1.3 2.5-2.6M11 6.5h9M11 13h9M11 19h9M5 19h1.5", search="q",
        ),
        Page("pipelines", "Pipelines", "p", "M4 5h6v5H4ZM14 14h6v5h-6ZM4 14h6v5H4ZM7 10v4M10 16.5h4"),
        Page(
            "runs", "Runs", "r",
            "M3 12a2 2 0 1 0 4 0 2 2 0 1 0-4 0M17 6a2 2 0 1 0 4 0 2 2 0 1 0-4 0M17 18a2 2 0 1 0 4 0 2 2 0 1 0-4 0"
            "M7 12h2.5C13 12 12 6 15 6h2M9.5 12c3.5 0 2.5 6 5.5 6h2",
        ),
    ),
    "Operations": (
        Page("queues", "Queues", "q", "M4 6h16M4 10.7h16M4 15.3h11M4 20h6"),
        Page(
            "workers", "Workers", "w",
            "M7 7h10v10H7ZM10 7V4M14 7V4M10 20v-3M14 20v-3M7 10H4M7 14H4M20 10h-3M20 14h-3M10.5 10.5h3v3h-3Z",
        ),
        Page("dead_letters", "Dead letters", "d", "M6 20v-9a6 6 0 0 1 12 0v9M4 20h16M9.5 11h5M12 8.5v6"),
        Page("schedules", "Schedules", "s", "M5 6h14v14H5ZM5 10.5h14M9 3.5v4M15 3.5v4"),
        Page("agents", "Agents", "g", "M6 9h12v10H6ZM12 9V5M9.5 13v1.5M14.5 13v1.5M3.5 13v3M20.5 13v3"),
    ),
    "Account": (
        Page("usage", "Usage", "u", "M4 20h16M7 16v-5M12 16V6M17 16V9"),
        Page("audit", "Audit", "t", "m12 3.5 7 2.5v5.5c0 4.5-3 7.5-7 9-4-1.5-7-4.5-7-9V6Zm-3 8.5 2.2 2.2 4.1-4.2"),
        Page(
            "settings", "Settings", "e",
            "M4 7h8.5M17.5 7H20M15 4.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5ZM4 17h2.5M11.5 17H20"
            "M9 14.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5Z",
        ),
    ),
}  # fmt: skip
#: Icons of the links to other tools.
STROKES = {
    "admin": "M8 11a4 4 0 1 0 0 8 4 4 0 0 0 0-8ZM11 12.2 19.5 4M16 7.5l3 3M13.5 10l2 2",
    "api": "m9 7-5 5 5 5M15 7l5 5-5 5",
    "flower": "M12 9.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5ZM12 3.5v3M12 17.5v3M3.5 12h3M17.5 12h3"
    "M6 6l2 2M16 16l2 2M18 6l-2 2M8 16l-2 2",
}


def address_of(here: str) -> str:
    """Return the page's address without a tenant, or that of the overview if it is not in the menu."""
    listed = {page.name: page for pages in PAGES.values() for page in pages}
    return listed.get(here, listed["home"]).address


# Links between a row of the admin and the console's page of the same object.


#: By model: the name of the console's URL, and the attribute for its argument; empty for a page of the tenant.
_PAGES: dict[str, tuple[str, str]] = {
    "activities.activity": ("activity", "pk"),
    "activities.activityrun": ("activity", "activity_id"),
    "activities.wake": ("activity", "activity_id"),
    "activities.deadletter": ("dead_letters_alike", "fingerprint"),
    "agents.agent": ("agent", "pk"),
    "agents.agentconfig": ("agent", "agent_id"),
    "activities.workerprocess": ("workers", ""),
    "pipelines.pipeline": ("pipeline", "key"),
    "pipelines.pipelinerun": ("run", "pk"),
    "pipelines.steprun": ("run", "run_id"),
    "pipelines.schedule": ("schedule", "pk"),
    "pipelines.scheduleexecution": ("schedule", "schedule_id"),
    "tenants.tenant": ("home", ""),
    "tenants.members": ("settings", ""),
    "tenants.apitoken": ("settings_tokens", ""),
    "tenants.auditentry": ("audit", ""),
    "tenants.budget": ("usage", ""),
}


def console_page(row: Any) -> str:
    """Return the address of the console's page for a row of the admin; empty if there is none."""
    target = _PAGES.get(row._meta.label_lower) if isinstance(row, Model) else None
    if target is None:
        return ""
    name, attribute = target
    key = getattr(row, attribute, None) if attribute else None
    if attribute and key is None:
        return ""
    try:
        address = reverse(f"console:{name}", args=[key] if attribute else [])
    except NoReverseMatch:  # the key is not valid in a URL
        return ""
    slug = _slug_of(row)
    return f"{address}?{urlencode({'tenant': slug})}" if slug else address


def admin_page(row: Model) -> str:
    """Return the address of the row's page in the admin."""
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])


def may_enter(user: Any, row: Model, *, is_admin: bool = False) -> bool:
    """Return whether a person may open a row in the admin: superusers always, staff and the tenant's admins for rows of tenants."""
    is_owned = getattr(row, "tenant_id", None) is not None
    return bool(user.is_superuser or ((user.is_staff or is_admin) and is_owned))


def _slug_of(row: Any) -> str:
    if row._meta.label_lower == "tenants.tenant":
        return str(row.slug)
    return str(row.tenant.slug) if getattr(row, "tenant_id", None) else ""
