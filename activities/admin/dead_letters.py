"""Admin of dead letters: lists final failures with the number of similar ones, and replays or dismisses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import admin
from django.db.models import Count, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.decorators import display
from unfold.enums import ActionVariant

from activities import dead_letters
from activities.admin.columns import RoleFilter
from activities.exceptions import ActivityError
from activities.models import (
    Activity,
    ActivityRun,
    DeadLetter,
    FailuresInARow,
    MailboxItem,
    RepeatedSubmissions,
)
from activities.models.dead_letter import DeadLetterState
from tenants.admin.actions import Action, ActionsAdmin
from tenants.admin.bases import (
    NOTHING,
    RecordAdmin,
    actor_of,
    badge_of,
    link_of,
    link_to,
)
from tenants.context import tenant_scope

REPLAY = Action(
    "replay",
    "Replayed",
    "These start again with all their attempts, for the reasons of their last run.",
    icon="replay",
    counted=lambda letters: _describe_plan(letters, _only_this, dead_letters.replay),
    do=lambda request, letter, notes: _replay(request, letter, _only_this),
)
REPLAY_ALIKE = Action(
    "replay-alike",
    "Replayed, with all similar failures",
    "All failures of the same tenant with the same fingerprint start again, with all their attempts.",
    title="Replay all similar",
    icon="replay_10",
    counted=lambda letters: _describe_plan(letters, _all_similar, dead_letters.replay),
    do=lambda request, letter, notes: _replay(request, letter, _all_similar),
)
DISMISS = Action(
    "dismiss",
    "Dismissed",
    "These activities are cancelled, together with all questions that were asked because of them.",
    notes="Reason",
    notes_needed=True,
    danger=True,
    icon="cancel",
    counted=lambda letters: _describe_plan(letters, _only_this, dead_letters.dismiss, reason=""),
    variant=ActionVariant.DANGER,
    do=lambda request, letter, notes: _dismiss(request, letter, notes),
)


@admin.register(DeadLetter)
class DeadLetterAdmin(ActionsAdmin, RecordAdmin):
    list_display = (
        "created_at",
        "activity_link",
        "tenant",
        "agent_role",
        "reason",
        "error_text",
        "situation",
        "similar_count",
    )
    list_filter = ("state", "reason", RoleFilter)
    list_select_related = ("activity",)
    list_disable_select_all = False
    search_fields = ("activity__name", "fingerprint")
    stands_for = {"activity_link": "activity_id"}
    fields = (
        "id", "activity_link", "tenant", "agent_role", "reason", "situation", "error", "attempts", "stalls", "cost_usd", "run_link",
        "escalation_link", "fingerprint", "similar_count", "created_at", "handled_at", "closed_at", "closed_by",
    )  # fmt: skip
    row_actions = (REPLAY, REPLAY_ALIKE, DISMISS)

    def get_queryset(self, request: HttpRequest) -> QuerySet[DeadLetter]:
        rows: QuerySet[DeadLetter] = super().get_queryset(request)
        same = (
            DeadLetter.objects.filter(
                tenant_id=OuterRef("tenant_id"),
                fingerprint=OuterRef("fingerprint"),
                state=DeadLetterState.OPEN,
            )
            .order_by()
            .values("fingerprint")
            .annotate(count=Count("pk"))
        )
        return rows.annotate(open_alike=Coalesce(Subquery(same.values("count")), 0))

    @display(description="Activity or item")
    def activity_link(self, letter: DeadLetter) -> SafeString:
        if letter.activity_id is None:
            return link_to(MailboxItem, letter.mailbox_item_id, letter.name)
        return link_to(Activity, letter.activity_id, letter.activity)

    situation = badge_of("state", "State", open="danger")

    @display(description="Error")
    def error_text(self, letter: DeadLetter) -> str:
        return str(letter.error.get("message") or letter.error.get("code") or NOTHING)[:200]

    @display(description="Open similar failures")
    def similar_count(self, letter: DeadLetter) -> SafeString:
        """Render the number of open dead letters with the same fingerprint, as a link to their list."""
        query = urlencode({"fingerprint__exact": letter.fingerprint, "tenant": letter.tenant.slug})
        url = f"{reverse('admin:activities_deadletter_changelist')}?{query}"
        count = letter.open_alike  # type: ignore[attr-defined]  # annotated by get_queryset
        return format_html('<a class="text-link" href="{}">{}</a>', url, count)

    run_link = link_of("run_id", ActivityRun, "Run")
    escalation_link = link_of("escalation_id", Activity, "Escalation")


Selector = Callable[[DeadLetter], QuerySet[DeadLetter]]


def _only_this(letter: DeadLetter) -> QuerySet[DeadLetter]:
    rows: QuerySet[DeadLetter] = DeadLetter.objects.for_tenant(letter.tenant_id)
    return rows.filter(pk=letter.pk)


def _all_similar(letter: DeadLetter) -> QuerySet[DeadLetter]:
    rows: QuerySet[DeadLetter] = DeadLetter.objects.for_tenant(letter.tenant_id)
    return rows.filter(fingerprint=letter.fingerprint)


def _describe_plan(
    letters: QuerySet[DeadLetter], select: Selector, do: Callable[..., Any], **more: Any
) -> str:
    """Describe the result of a dry run."""
    distinct: dict[tuple[UUID, str], DeadLetter] = {}
    for letter in letters:
        distinct[letter.tenant_id, letter.fingerprint if select is _all_similar else str(letter.pk)] = letter
    count = skipped = 0
    for letter in distinct.values():
        with tenant_scope(letter.tenant_id):
            planned = do(letter.tenant_id, select(letter), actor="admin", dry_run=True, **more)
        count, skipped = count + planned.count, skipped + planned.skipped
    return f"This affects {count}; {skipped} were handled before."


def _replay(request: HttpRequest, letter: DeadLetter, select: Selector) -> None:
    with tenant_scope(letter.tenant_id):
        done = dead_letters.replay(letter.tenant_id, select(letter), actor=actor_of(request))
    _refuse_nothing(done.count)


def _dismiss(request: HttpRequest, letter: DeadLetter, reason: str) -> None:
    with tenant_scope(letter.tenant_id):
        done = dead_letters.dismiss(
            letter.tenant_id, _only_this(letter), actor=actor_of(request), reason=reason
        )
    _refuse_nothing(done.count)


def _refuse_nothing(count: int) -> None:
    if not count:
        raise ActivityError(
            "It was handled before, work with the same key is under way, or its pipeline run is being replayed.",
            code="dealt_with",
        )


@admin.register(FailuresInARow)
class FailuresInARowAdmin(RecordAdmin):
    list_display = ("subject", "kind", "tenant", "count", "error_code", "since")
    list_filter = ("kind",)
    search_fields = ("subject",)


@admin.register(RepeatedSubmissions)
class RepeatedSubmissionsAdmin(RecordAdmin):
    list_display = ("agent_role", "tenant", "count")
    search_fields = ("agent_role",)
