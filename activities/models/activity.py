"""Activities, their history, and the spool of outputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models.functions import Now

from activities import states
from tenants.models import FOR_LISTS, TenantOwned, TenantPart, index, part_of, unique


class AssigneeType(models.TextChoices):
    AGENT = "agent"
    HUMAN = "human"


class GroupScope(models.TextChoices):
    """The activities among which a group key counts."""

    ROLE = "role"
    TENANT = "tenant"


def _indexed_names(statuses: Iterable[str]) -> list[str]:
    return sorted({states.INDEXED[status] for status in statuses})


def in_status(*statuses: str) -> models.Q:
    """Return a filter for activities in one of these statuses, written so that PostgreSQL can use their indexes."""
    return models.Q(status__in=sorted(statuses), indexed_status__in=_indexed_names(statuses))


class Activity(TenantOwned):
    """One piece of work for an agent or a person. Only `activities.transitions` writes `status`."""

    name = models.CharField(max_length=200)
    description = models.TextField(blank=True, default="")
    status = models.CharField(
        max_length=20, choices=[(s.value, s.value) for s in states.Status], default=states.Status.CREATED
    )
    indexed_status = models.CharField(
        max_length=20,
        db_default=states.OPEN,
        editable=False,
        help_text="See `states.INDEXED`. A trigger sets it.",
    )
    assignee_type = models.CharField(max_length=8, choices=AssigneeType.choices)
    agent_role = models.CharField(max_length=63, null=True, blank=True)
    human_role = models.CharField(max_length=63, null=True, blank=True)
    is_approval_gate = models.BooleanField(default=False)
    requires_approval = models.BooleanField(default=False)
    priority = models.SmallIntegerField(default=10, validators=[MinValueValidator(1), MaxValueValidator(20)])

    params = models.JSONField(default=dict, blank=True)
    metadata = models.JSONField(default=dict, blank=True)
    input = models.JSONField(
        null=True, blank=True, help_text="Inline content and data, or references by step name."
    )
    input_ref = models.UUIDField(null=True, blank=True, help_text="The run whose output is the input.")
    output_ref = models.UUIDField(null=True, blank=True, help_text="The run whose output was accepted.")

    parent = part_of("self", "children", null=True, blank=True)
    link_kind = models.CharField(
        max_length=20, null=True, blank=True, choices=[(k.value, k.value) for k in states.LinkKind]
    )

    # Its origin. The app pipelines adds the foreign keys as database constraints, because this app must not depend on it.
    deliverable_id = models.UUIDField(null=True, blank=True)
    pipeline_run_id = models.UUIDField(null=True, blank=True)
    pipeline_id = models.UUIDField(
        null=True, blank=True, help_text="The pipeline of its run, because pauses name pipelines."
    )
    period_id = models.UUIDField(
        null=True, blank=True, help_text="The period (month) of its deliverable that it plans or belongs to."
    )
    template = models.CharField(
        max_length=63, null=True, blank=True, help_text="Key of the template of its step."
    )
    step = models.CharField(max_length=63, null=True, blank=True)
    branch = models.IntegerField(default=0)
    round = models.PositiveSmallIntegerField(default=1)
    schedule_id = models.UUIDField(
        null=True, blank=True, help_text="The schedule that it, or the run of its pipeline, comes from."
    )

    mailbox = part_of(
        "activities.Mailbox",
        "+",
        null=True,
        blank=True,
        help_text="The mailbox whose conversation it continues, instead of its deliverable's.",
    )
    agent_options = models.JSONField(
        default=dict,
        db_default={},
        blank=True,
        help_text="Options for its agent in addition to the role's settings: model, max_turns.",
    )

    dedup_key = models.CharField(max_length=200, null=True, blank=True)
    group_key = models.CharField(max_length=200, null=True, blank=True)
    group_scope = models.CharField(
        max_length=8,
        choices=GroupScope.choices,
        default=GroupScope.ROLE,
        db_default=GroupScope.ROLE,
        help_text="Whether its group consists of work of its role, or of all roles of the tenant.",
    )
    files = models.JSONField(
        default=list,
        db_default=[],
        blank=True,
        help_text="Paths and globs. Other activities of the tenant with overlapping paths never run at the same time.",
    )
    not_before = models.DateTimeField(null=True, blank=True)
    run_now_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text="When a person requested a run in spite of pauses. The next run clears it.",
    )
    expires_at = models.DateTimeField(null=True, blank=True)
    due_at = models.DateTimeField(null=True, blank=True)
    timeout_seconds = models.PositiveIntegerField(null=True, blank=True)
    retry = models.JSONField(default=dict, blank=True)
    max_attempts = models.PositiveSmallIntegerField(default=3)

    fence = models.IntegerField(
        default=0, help_text="Increases with every claim. A write with a lower number is refused."
    )
    attempts = models.PositiveSmallIntegerField(default=0)
    stalls = models.PositiveSmallIntegerField(default=0)
    version = models.IntegerField(
        default=1, help_text="Increases with every transition; the ETag begins with it."
    )
    wake_reason = models.CharField(max_length=20, null=True, blank=True)
    error = models.JSONField(null=True, blank=True)

    decision_rules = models.JSONField(
        null=True,
        blank=True,
        help_text="How people decide it: options, quorum, who must not decide, and what happens if nobody does.",
    )
    reviewer_notes = models.TextField(null=True, blank=True)
    chosen_option = models.CharField(max_length=200, null=True, blank=True)
    decided_by = models.CharField(max_length=200, null=True, blank=True)
    blocker_type = models.CharField(max_length=63, null=True, blank=True)
    blocker_message = models.TextField(null=True, blank=True)
    reassign_reason = models.TextField(null=True, blank=True)
    cancel_reason = models.TextField(null=True, blank=True)

    created_at = models.DateTimeField(db_default=Now(), editable=False)
    assigned_at = models.DateTimeField(null=True, blank=True, editable=False)
    started_at = models.DateTimeField(null=True, blank=True, editable=False)
    finished_at = models.DateTimeField(null=True, blank=True, editable=False)
    decided_at = models.DateTimeField(null=True, blank=True, editable=False)
    blocked_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        verbose_name_plural = "activities"
        constraints = (
            unique("activity_of_tenant", "tenant", "id"),
            unique(
                "activity_once_while_live",
                "tenant",
                "dedup_key",
                dedup_key__isnull=False,
                indexed_status__in=_indexed_names(states.LIVE),
            ),
            # One activity per step, branch and round, so that a repeated progression starts a step only once. For other links the last
            # expression is null, which equals nothing. Also the index for the activities of a run or a step.
            models.UniqueConstraint(
                "pipeline_run_id",
                "step",
                "branch",
                "round",
                models.Case(
                    models.When(
                        models.Q(link_kind__isnull=True) | models.Q(link_kind=states.LinkKind.REVISION_OF),
                        then=True,
                    )
                ),
                condition=models.Q(pipeline_run_id__isnull=False),
                name="activity_of_step_once",
            ),
            models.CheckConstraint(
                condition=models.Q(status__in=[s.value for s in states.Status]), name="activity_status_known"
            ),
            models.CheckConstraint(
                condition=models.Q(priority__range=(1, 20)), name="activity_priority_range"
            ),
            models.CheckConstraint(
                condition=models.Q(assignee_type="agent", agent_role__isnull=False)
                | models.Q(assignee_type="human", human_role__isnull=False),
                name="activity_has_assignee",
            ),
            models.CheckConstraint(
                condition=~models.Q(status__in=sorted(states.SETTLED)) | models.Q(finished_at__isnull=False),
                name="activity_settled_has_end",
            ),
        )
        indexes = (
            index("activities_by_time", "tenant", "created_at", "id", where=FOR_LISTS),
            index(
                "activities_not_done",
                "tenant",
                "indexed_status",
                "created_at",
                where=~models.Q(indexed_status=states.Status.DONE),
            ),
            index("activity_of_schedule", "tenant", "schedule_id", "-created_at", schedule_id__isnull=False),
            index("activity_of_period", "tenant", "period_id", "-created_at", period_id__isnull=False),
            index(
                "activities_that_expire",
                "expires_at",
                expires_at__isnull=False,
                indexed_status__in=_indexed_names(states.EXPIRING),
            ),
            index("activity_children", "parent", parent__isnull=False),
            index(
                "activities_of_inboxes",
                "tenant",
                "human_role",
                assignee_type="human",
                indexed_status=states.OPEN,
            ),
        )

    def __str__(self) -> str:
        return self.name


class Move(NamedTuple):
    """A change from one status to another, or to itself, with its number in the history."""

    seq: int
    verb: str
    source: str | None
    target: str


class ActivityEvent(TenantPart):
    """One transition of an activity; rows never change. `seq` counts up from 1 without gaps, and the last `target` is the current status.

    A claim that starts its activity in the same statement is one row: a start whose source is `created`. It stands for two numbers, its own
    and the one before it, which is the claim's; `moves` returns both.
    """

    activity = part_of("activities.Activity", "events")
    seq = models.IntegerField()
    verb = models.CharField(max_length=24)
    source = models.CharField(max_length=20, null=True)
    target = models.CharField(max_length=20)
    actor = models.CharField(
        max_length=200, help_text="user:…, token:…, run:…, or the part of the system that acted."
    )
    run_id = models.UUIDField(null=True)
    detail = models.JSONField(default=dict)
    at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("activity", "seq")
        constraints = (unique("event_once", "activity", "seq"),)

    def __str__(self) -> str:
        return f"{self.verb} -> {self.target}"

    @property
    def moves(self) -> tuple[Move, ...]:
        """The changes of this row, oldest first: one, or a claim and its start."""
        if self.verb == "start" and self.source == states.Status.CREATED:
            assigned = states.Status.ASSIGNED.value
            return Move(self.seq - 1, "claim", self.source, assigned), Move(
                self.seq, self.verb, assigned, self.target
            )
        return (Move(self.seq, self.verb, self.source, self.target),)


class OutputSpool(TenantPart):
    """An output, written in the transaction of its result and later moved to MongoDB. Readers look here first."""

    id = models.UUIDField(primary_key=True, help_text="The run's id, and the document's `_id`.")
    activity_id = models.UUIDField()
    content = models.TextField(null=True)
    data = models.JSONField(null=True)
    content_type = models.CharField(max_length=100, default="text/markdown")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        verbose_name = "pending output"

    def __str__(self) -> str:
        return str(self.id)
