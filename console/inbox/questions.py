"""Notifies channels of the kind `decision` about each new question, with the texts to judge.

The leader searches for questions without an alert. The item's id is the alert's key, so it is raised once, whoever searches. The alert
stores the item's version and its text's id, so that a decision from the message applies to exactly these. Questions of a suspended tenant
wait until it is active again, because nobody could decide meanwhile.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Exists, Min, OuterRef, Q, TextField, Value
from django.db.models.functions import Cast, Concat

from activities import outputs
from activities.alerts import raise_alert
from activities.decision_rules import DecisionRules
from activities.exceptions import OutputUnavailable
from activities.models import Activity, Alert, NotificationChannel
from activities.models.alert import AlertKind, Severity
from activities.outputs import StoredOutput
from activities.selectors import OPEN_FOR_PEOPLE
from activities.states import LinkKind
from console.inbox.detail import Difference, difference, line_of, round_before, subject_of
from tenants import outages, sweeps
from tenants.context import tenant_scope
from tenants.sweeps import Sweep

logger = logging.getLogger(__name__)

TENANT_SECONDS = 1.0  # in each turn; then the next tenant's questions follow
_TENANTS = Sweep[Any]()
_QUESTIONS: defaultdict[UUID, Sweep[Any]] = defaultdict(Sweep)
LONGEST_TEXT = 3_500  # characters; the rest can be read in the console
CUT = "(The text is shortened. Open the item to read all of it.)"
_KEY = "decision:"


def notify() -> int:
    """Send notifications of questions that are newer than their channel, and return their number. Safe to run concurrently."""
    channels = NotificationChannel.objects.filter(
        enabled=True, kinds__contains=[AlertKind.DECISION.value], tenant__is_active=True
    )
    tenants = channels.values("tenant_id").annotate(since=Min("created_at"))
    sent = 0
    for tenant_id, since in _TENANTS.turn(sweeps.pages(tenants, "tenant_id", "since")):
        with outages.one_of_many(
            logger,
            "Questions of a tenant not notified",
            action="questions_failed",
            tenant=str(tenant_id),
        ):
            sent += _notify_tenant(tenant_id, since)
    return sent


def _notify_tenant(tenant_id: UUID, since: datetime) -> int:
    alerts = Alert.objects.for_tenant(tenant_id).filter(
        dedup_key=Concat(Value(_KEY), Cast(OuterRef("pk"), TextField()))
    )
    rows = Activity.objects.for_tenant(tenant_id).filter(OPEN_FOR_PEOPLE, created_at__gte=since)
    rows = rows.filter(Q(is_approval_gate=True) | Q(link_kind__in=(LinkKind.REVIEW, LinkKind.APPROVAL)))
    new = sweeps.pages(rows.exclude(Exists(alerts)), "created_at", "pk")
    sent = 0
    for _, pk in _QUESTIONS[tenant_id].turn(new, within=TENANT_SECONDS):
        with outages.one_of_many(
            logger, "A question not notified", action="questions_failed", activity=str(pk)
        ):
            with tenant_scope(tenant_id):
                item = Activity.objects.for_tenant(tenant_id).select_related("parent").filter(pk=pk).first()
                question = _Question(item) if item else None
            sent += question.notify() if question else 0
    return sent


class _Question:
    """One item, read in its tenant's scope. `notify` reads its texts, which may lie in MongoDB."""

    def __init__(self, item: Any) -> None:
        self.item = item
        before = round_before(line_of(subject_of(item)))
        self.before = before.output_ref if before else None
        self.notes = before.notes if before else ""
        self.has_options = bool(DecisionRules.read(item.decision_rules).options)

    def notify(self) -> bool:
        item = self.item
        output_ids = {reference for reference in (item.input_ref, self.before) if reference}
        try:
            texts = outputs.read_many(item.tenant_id, output_ids)
        except OutputUnavailable:
            return False  # the next pass tries again
        new, old = texts.get(item.input_ref), texts.get(self.before) if self.before else None
        body = "\n\n".join(part for part in self._parts(new, old) if part)
        is_whole = len(body) <= LONGEST_TEXT and (
            item.input_ref is None or (new is not None and new.data is None)
        )
        with tenant_scope(item.tenant_id):
            # The buttons name the version that was read here: they are refused if the item has changed since.
            raised = raise_alert(
                item.tenant_id,
                AlertKind.DECISION,
                item.name,
                body=body if is_whole else f"{body[:LONGEST_TEXT]}\n\n{CUT}",
                severity=Severity.INFO,
                activity_id=item.pk,
                facts={
                    "human_role": item.human_role,
                    "version": item.version,
                    "content_ref": str(item.input_ref or ""),
                    # The message has buttons only if it holds the whole text and no option has to be chosen.
                    "decides": is_whole and not self.has_options,
                },
                dedup_key=f"{_KEY}{item.pk}",
                platform=False,
            )
        return raised is not None

    def _parts(self, new: StoredOutput | None, old: StoredOutput | None) -> Iterator[str]:
        yield self.item.description or ""
        if self.notes:
            yield f"Changes were requested: {self.notes}"
        text, before = (output.content or "" if output else "" for output in (new, old))
        changes = difference(before, text)
        if before and text and not changes.too_long:
            yield f"Changes since then:\n{_format_changes(changes)}"
        else:
            yield text


_SIGNS = {"same": " ", "added": "+", "removed": "-"}


def _format_changes(changes: Difference) -> str:
    lines = (
        _SIGNS[line.kind] + "".join(text for text, _ in line.parts)
        for line in changes.lines
        if line.kind in _SIGNS
    )
    return "\n".join(lines) or "None."
