"""Records of decisions of people: approvals about several activities, votes, deadlines, held answers and snoozed items."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

from activities.models.activity import Activity
from tenants.identifiers import uuid7
from tenants.models import Membership, TenantPart, index, part_of, unique


class Approval(TenantPart):
    """A question to people whose answer wakes every linked activity.

    It extends an activity of a person with the same id, which holds the decision.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    type = models.CharField(max_length=63, help_text="For example content_direction or brand_direction.")
    options = models.JSONField(
        default=list, blank=True, help_text="The options of the answer. If empty, the answer is yes or no."
    )
    requested_by = models.CharField(max_length=200)
    requested_identity = models.CharField(
        max_length=100, help_text="The identity of the requester. Unlike a name, nobody can choose it."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (unique("approval_of_tenant", "tenant", "id"),)
        indexes = (index("approval_newest", "tenant", "-created_at", "-id"),)

    def __str__(self) -> str:
        return self.type.replace("_", " ")


class LinkState(models.TextChoices):
    WAITING = "waiting"  # for the decision
    WOKEN = "woken"  # its next run receives the decision
    SKIPPED = "skipped"  # it had ended, or does not start automatically


class ApprovalLink(TenantPart):
    """An activity that an approval is about."""

    approval = part_of(Approval, "links")
    activity = part_of("activities.Activity", "approval_links")
    state = models.CharField(max_length=8, choices=LinkState.choices, default=LinkState.WAITING)
    reason = models.CharField(
        max_length=200, blank=True, default="", help_text="Why the activity was skipped."
    )

    class Meta:
        db_table = "approval_linked_activities"
        ordering = ("approval", "activity")
        constraints = (unique("linked_once", "approval", "activity"),)
        indexes = (index("approvals_of_activity", "activity", "state"),)

    def __str__(self) -> str:
        return f"{self.activity_id}: {self.state}"


class Vote(TenantPart):
    """One person's vote on a question that several people must agree on."""

    activity = part_of("activities.Activity", "votes")
    voter = models.CharField(
        max_length=100, help_text="The identity of the voter, so that nobody votes twice."
    )
    actor = models.CharField(max_length=200)
    decision = models.CharField(max_length=8, choices=[("approve", "approve"), ("reject", "reject")])
    chosen_option = models.CharField(max_length=200, null=True)
    notes = models.TextField(blank=True, default="")
    at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("at", "pk")
        constraints = (unique("one_vote_each", "activity", "voter"),)

    def __str__(self) -> str:
        return f"{self.actor}: {self.decision}"


class DeadlineKind(models.TextChoices):
    REMINDER = "reminder"  # the people who are asked are reminded
    ESCALATION = "escalation"  # somebody else is asked
    DUE = "due"  # the default outcome applies, if there is one


class Deadline(TenantPart):
    """An action at a time, unless a person has decided before. Each happens once."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    activity = part_of("activities.Activity", "deadlines")
    kind = models.CharField(max_length=10, choices=DeadlineKind.choices)
    at = models.DateTimeField()
    human_role = models.CharField(
        max_length=63,
        blank=True,
        default="",
        help_text="The role that is reminded, or that is asked from then on.",
    )
    happened_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("at", "pk")
        constraints = (unique("deadline_once", "activity", "kind", "at"),)
        indexes = (index("deadlines_ahead", "at", "id", happened_at__isnull=True),)

    def __str__(self) -> str:
        return f"{self.kind} at {self.at:%Y-%m-%d %H:%M}"


LONGEST_REFUSAL = 500


class HeldAnswer(TenantPart):
    """An answer that a person may still undo. The row is deleted when it takes effect, or stays with the reason why it could not."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    activity = part_of("activities.Activity", "+")
    # PostgreSQL deletes the rows with the person, because the code that deletes a person may not see the rows of all tenants.
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.DO_NOTHING,
        related_name="+",
        db_constraint=False,
        db_index=False,
    )
    version = models.PositiveIntegerField(
        db_column="shown", help_text="The version of the item that the person saw."
    )
    action = models.CharField(db_column="deed", max_length=20)
    outcome = models.CharField(
        db_column="words", max_length=60, help_text="The name of the action once it is done."
    )
    form_values = models.JSONField(
        db_column="said", default=dict, help_text="Notes, chosen option and result."
    )
    due_at = models.DateTimeField(help_text="When it takes effect.")
    refusal = models.CharField(
        max_length=LONGEST_REFUSAL,
        blank=True,
        default="",
        help_text="Why it could not take effect. Empty while it is held.",
    )
    request_id = models.CharField(
        max_length=64,
        blank=True,
        default="",
        db_default="",
        help_text="The request that gave it, for the audit trail.",
    )
    ip = models.CharField(
        max_length=45, blank=True, default="", db_default="", help_text="The address of that request."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (unique("answer_held_once", "tenant", "user", "activity"),)
        indexes = (index("held_answers_due", "due_at", refusal=""),)

    def __str__(self) -> str:
        return f"{self.action}: {self.activity_id}"


def answered_before(activity: str, moment: str) -> models.Exists:
    """Whether somebody answered an item before a time, and the answer can still be undone. Both are columns of the outer query."""
    held = HeldAnswer.objects.filter(
        tenant_id=models.OuterRef("tenant_id"), activity_id=models.OuterRef(activity)
    )
    return models.Exists(held.filter(refusal="", created_at__lte=models.OuterRef(moment)))


class SnoozedItem(TenantPart):
    """An inbox item that is hidden from one member until `until`, or until its version changes. Other members see it."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    # PostgreSQL deletes the rows with the activity and the membership, through foreign keys that include the tenant.
    activity = models.ForeignKey(
        Activity, on_delete=models.DO_NOTHING, related_name="+", db_constraint=False, db_index=False
    )
    membership = models.ForeignKey(
        Membership, on_delete=models.DO_NOTHING, related_name="+", db_constraint=False, db_index=False
    )
    until = models.DateTimeField()
    version = models.IntegerField(help_text="The version of the activity when it was snoozed.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            # It begins with the activity, because the list checks for each item whether it is snoozed.
            unique("snoozed_once_per_member", "tenant", "activity", "membership"),
        )
        indexes = (index("snoozed_by_member", "tenant", "membership"),)

    def __str__(self) -> str:
        return f"{self.activity_id} until {self.until:%Y-%m-%d %H:%M}"
