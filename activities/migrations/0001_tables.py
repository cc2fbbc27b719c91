"""The tables of activities: work and its history, people's decisions, mailboxes, batches, alerts and the system's own records.

No index of activities has a column that a claim changes, so that claims write no entries of indexes: `indexed_status` stays equal.
Indexes in the order of time ascend, so that new entries come at their right end, where pages are filled; those in the middle are split in
halves. They are read backwards.
"""

from uuid import UUID

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import migrations, models
from django.db.models.functions import Now

from tenants.identifiers import uuid7

# Room for later versions of a row on the page where it stands: in another place one needs entries of indexes, a lock, and its whole text in
# PostgreSQL's log.
ROOM_FOR_LATER_VERSIONS = [
    "ALTER TABLE activities_activity SET (fillfactor = 70)",
    "ALTER TABLE activities_wake SET (fillfactor = 75)",
]
# Counters begin with the first event.
FIRST_MARK = "INSERT INTO activities_countingmark (id, counted, seen, barrier) VALUES (1, 0, 0, 0)"


class Migration(migrations.Migration):
    initial = True
    replaces = [("activities", "0041_origin_of_held_answers")]  # the last of those that it stands for
    dependencies = [
        ("tenants", "0002_tables"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="OutputSpool",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        help_text="The run's id, and the document's `_id`.", primary_key=True, serialize=False
                    ),
                ),
                ("activity_id", models.UUIDField()),
                ("content", models.TextField(null=True)),
                ("data", models.JSONField(null=True)),
                ("content_type", models.CharField(default="text/markdown", max_length=100)),
                ("created_at", models.DateTimeField(db_default=Now())),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "verbose_name": "pending output",
            },
        ),
        migrations.CreateModel(
            name="WorkerProcess",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("host", models.CharField(max_length=200)),
                (
                    "boot",
                    models.CharField(
                        help_text="Identifies the start of the machine and the process namespace, in which `pid` is valid.",
                        max_length=120,
                    ),
                ),
                ("pid", models.IntegerField()),
                (
                    "pid_started",
                    models.BigIntegerField(
                        help_text="Start time of the process in the kernel, so that a reused pid is recognized."
                    ),
                ),
                (
                    "roles",
                    ArrayField(
                        base_field=models.CharField(max_length=63),
                        help_text="Agent roles whose queues it consumes.",
                        size=None,
                    ),
                ),
                ("concurrency", models.PositiveIntegerField()),
                ("counter", models.BigIntegerField(default=0)),
                ("taken", models.BigIntegerField(default=0, help_text="Runs claimed since its start.")),
                ("started_at", models.DateTimeField(db_default=Now())),
                (
                    "beat_at",
                    models.DateTimeField(
                        db_default=Now(),
                        help_text="Only for people. Recovery never compares it with a clock.",
                    ),
                ),
                ("ended_at", models.DateTimeField(null=True)),
                ("end_reason", models.CharField(blank=True, default="", max_length=20)),
                (
                    "active",
                    models.PositiveIntegerField(
                        db_default=0, default=0, help_text="Current runs at the last heartbeat."
                    ),
                ),
                (
                    "closed",
                    models.JSONField(
                        blank=True,
                        db_default={},
                        default=dict,
                        help_text="Why it takes no new work, by role; `*` means all roles. Its seats are withdrawn from admission.",
                    ),
                ),
                (
                    "load",
                    models.JSONField(
                        help_text="Load of the processor and the memory of its host at the last heartbeat, as shares.",
                        null=True,
                    ),
                ),
                (
                    "outage_at",
                    models.DateTimeField(
                        help_text="The end of the outage of PostgreSQL that it was affected by. The runs that it lost then do not count as stalls.",
                        null=True,
                    ),
                ),
                (
                    "version",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="The version of its program.",
                        max_length=40,
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "worker processes",
                "indexes": [
                    models.Index(
                        condition=models.Q(("ended_at__isnull", True)), fields=["id"], name="live_workers"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Approval",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                (
                    "type",
                    models.CharField(
                        help_text="For example content_direction or brand_direction.", max_length=63
                    ),
                ),
                (
                    "options",
                    models.JSONField(
                        blank=True,
                        default=list,
                        help_text="The options of the answer. If empty, the answer is yes or no.",
                    ),
                ),
                ("requested_by", models.CharField(max_length=200)),
                (
                    "requested_identity",
                    models.CharField(
                        help_text="The identity of the requester. Unlike a name, nobody can choose it.",
                        max_length=100,
                    ),
                ),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["tenant", "-created_at", "-id"], name="approval_newest")],
                "constraints": [models.UniqueConstraint(fields=("tenant", "id"), name="approval_of_tenant")],
            },
        ),
        migrations.CreateModel(
            name="Alert",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("kind", models.CharField(max_length=32)),
                (
                    "severity",
                    models.CharField(
                        choices=[("info", "Info"), ("warning", "Warning"), ("critical", "Critical")],
                        default="warning",
                        max_length=8,
                    ),
                ),
                ("title", models.CharField(max_length=200)),
                ("body", models.TextField(blank=True, default="")),
                ("activity_id", models.UUIDField(blank=True, null=True)),
                (
                    "facts",
                    models.JSONField(blank=True, default=dict, help_text="Ids and numbers for programs."),
                ),
                (
                    "dedup_key",
                    models.CharField(
                        blank=True,
                        help_text="No second alert is created with the same key.",
                        max_length=200,
                        null=True,
                    ),
                ),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("acknowledged_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("acknowledged_by", models.CharField(blank=True, default="", editable=False, max_length=200)),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["tenant", "-created_at", "-id"], name="alert_newest"),
                    models.Index(
                        condition=models.Q(("activity_id__isnull", False)),
                        fields=["tenant", "activity_id"],
                        name="alerts_of_activity",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "id"), name="alert_of_tenant"),
                    models.UniqueConstraint(
                        condition=models.Q(("dedup_key__isnull", False)),
                        fields=("tenant", "dedup_key"),
                        name="alert_once_per_dedup_key",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="AlertDelivery",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid7,
                        editable=False,
                        help_text="Also used as the `webhook-id` and the Message-ID.",
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                (
                    "channel_kind",
                    models.CharField(
                        choices=[("slack", "Slack"), ("email", "Email"), ("webhook", "Webhook")], max_length=8
                    ),
                ),
                (
                    "channel_id",
                    models.UUIDField(
                        blank=True, help_text="Empty for the platform's own channels.", null=True
                    ),
                ),
                (
                    "channel_name",
                    models.CharField(
                        help_text="The channel's name when the alert was raised.", max_length=100
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("pending", "Pending"),
                            ("sending", "Sending"),
                            ("sent", "Sent"),
                            ("failed", "Failed"),
                            ("unknown", "Unknown"),
                        ],
                        default="pending",
                        editable=False,
                        max_length=8,
                    ),
                ),
                (
                    "attempts",
                    models.PositiveSmallIntegerField(
                        default=0,
                        help_text="Also identifies the claim: only the latest claim may record a result.",
                    ),
                ),
                (
                    "next_attempt_at",
                    models.DateTimeField(
                        db_default=Now(),
                        help_text="When a deliverer sends it next, or checks the result of an interrupted attempt.",
                    ),
                ),
                ("claimed_at", models.DateTimeField(blank=True, null=True)),
                ("last_error", models.CharField(blank=True, default="", max_length=500)),
                ("sent_at", models.DateTimeField(blank=True, null=True)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "alert",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="deliveries",
                        to="activities.alert",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "alert deliveries",
                "indexes": [
                    models.Index(
                        condition=models.Q(("state__in", ["pending", "sending"])),
                        fields=["channel_kind", "next_attempt_at"],
                        name="deliveries_due",
                    ),
                    models.Index(
                        condition=models.Q(("state", "pending")),
                        fields=["tenant", "channel_kind", "next_attempt_at", "id"],
                        name="deliveries_in_turn",
                    ),
                    models.Index(
                        condition=models.Q(("state", "sending")),
                        fields=["channel_kind"],
                        name="deliveries_under_way",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("alert", "channel_kind", "channel_id"),
                        name="alert_once_per_channel",
                        nulls_distinct=False,
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="NotificationChannel",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "kind",
                    models.CharField(
                        choices=[("slack", "Slack"), ("email", "Email"), ("webhook", "Webhook")], max_length=8
                    ),
                ),
                ("name", models.CharField(max_length=100)),
                ("target_sealed", models.TextField(editable=False)),
                (
                    "target_shown",
                    models.CharField(
                        editable=False,
                        help_text="The part of the target that is displayed, so that people recognize it.",
                        max_length=300,
                    ),
                ),
                (
                    "kinds",
                    models.JSONField(
                        blank=True, default=list, help_text="The kinds of alerts to send. If empty: all."
                    ),
                ),
                ("enabled", models.BooleanField(default=True)),
                (
                    "version",
                    models.IntegerField(
                        default=1,
                        editable=False,
                        help_text="Increases with every change; the ETag begins with it.",
                    ),
                ),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
                (
                    "digest",
                    models.CharField(
                        choices=[("off", "Off"), ("daily", "Daily"), ("weekly", "Weekly")],
                        db_default="off",
                        default="off",
                        help_text="For email: a daily or weekly summary.",
                        max_length=6,
                    ),
                ),
                (
                    "digest_roles",
                    models.JSONField(
                        blank=True,
                        db_default=[],
                        default=list,
                        help_text="The human roles whose waiting items the digest contains. If empty: all.",
                    ),
                ),
                ("digest_due_at", models.DateTimeField(editable=False, null=True)),
                (
                    "digest_hour",
                    models.PositiveSmallIntegerField(
                        blank=True,
                        help_text="0 to 23, in the tenant's time zone. If empty, the platform's setting, usually 7 for daily and 9 for weekly digests.",
                        null=True,
                        validators=[MaxValueValidator(23)],
                    ),
                ),
                (
                    "digest_day",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("monday", "Monday"),
                            ("tuesday", "Tuesday"),
                            ("wednesday", "Wednesday"),
                            ("thursday", "Thursday"),
                            ("friday", "Friday"),
                            ("saturday", "Saturday"),
                            ("sunday", "Sunday"),
                        ],
                        db_default="",
                        default="",
                        help_text="For weekly digests. If empty, Monday.",
                        max_length=9,
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("digest_due_at__isnull", False)),
                        fields=["digest_due_at"],
                        name="digests_due",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "name"), name="notification_channel_named_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="RepeatedSubmissions",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("agent_role", models.CharField(blank=True, default="", max_length=63)),
                ("count", models.PositiveBigIntegerField(default=0)),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "repeated submissions",
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "agent_role"), name="repetitions_once_per_role")
                ],
            },
        ),
        migrations.CreateModel(
            name="TurnedAway",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("agent_role", models.CharField(max_length=63)),
                (
                    "reason",
                    models.CharField(
                        choices=[
                            ("rejected", "The submission was answered 429."),
                            ("shed", "It made room for newer or more urgent work."),
                            ("expired", "Its time had passed before it could start."),
                        ],
                        max_length=8,
                    ),
                ),
                ("count", models.PositiveBigIntegerField(default=0)),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
            ],
            options={
                "verbose_name": "refused work",
                "verbose_name_plural": "refused work",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("tenant", "agent_role", "reason"), name="turned_away_once_per_role"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Mailbox",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("key", models.CharField(max_length=200)),
                (
                    "agent_role",
                    models.CharField(
                        blank=True,
                        help_text="The role that consumes it. If empty, clients take its items.",
                        max_length=63,
                        null=True,
                    ),
                ),
                (
                    "fence",
                    models.BigIntegerField(default=0, help_text="Increases with every batch that is taken."),
                ),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "mailboxes",
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "key"), name="mailbox_once_per_key"),
                    models.UniqueConstraint(fields=("tenant", "id"), name="mailbox_of_tenant"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Activity",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=200)),
                ("description", models.TextField(blank=True, default="")),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("created", "created"),
                            ("assigned", "assigned"),
                            ("in_progress", "in_progress"),
                            ("awaiting_approval", "awaiting_approval"),
                            ("awaiting_subtask", "awaiting_subtask"),
                            ("awaiting_review", "awaiting_review"),
                            ("blocked", "blocked"),
                            ("done", "done"),
                            ("approved", "approved"),
                            ("rejected", "rejected"),
                            ("reassigned", "reassigned"),
                            ("failed", "failed"),
                            ("needs_review", "needs_review"),
                            ("cancelled", "cancelled"),
                        ],
                        default="created",
                        max_length=20,
                    ),
                ),
                (
                    "assignee_type",
                    models.CharField(choices=[("agent", "Agent"), ("human", "Human")], max_length=8),
                ),
                ("agent_role", models.CharField(blank=True, max_length=63, null=True)),
                ("human_role", models.CharField(blank=True, max_length=63, null=True)),
                ("is_approval_gate", models.BooleanField(default=False)),
                ("requires_approval", models.BooleanField(default=False)),
                (
                    "priority",
                    models.SmallIntegerField(
                        default=10, validators=[MinValueValidator(1), MaxValueValidator(20)]
                    ),
                ),
                ("params", models.JSONField(blank=True, default=dict)),
                ("metadata", models.JSONField(blank=True, default=dict)),
                (
                    "input",
                    models.JSONField(
                        blank=True,
                        help_text="Inline content and data, or references by step name.",
                        null=True,
                    ),
                ),
                (
                    "input_ref",
                    models.UUIDField(blank=True, help_text="The run whose output is the input.", null=True),
                ),
                (
                    "output_ref",
                    models.UUIDField(blank=True, help_text="The run whose output was accepted.", null=True),
                ),
                (
                    "link_kind",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("gate", "gate"),
                            ("approval", "approval"),
                            ("subtask", "subtask"),
                            ("resolution", "resolution"),
                            ("review", "review"),
                            ("escalation", "escalation"),
                            ("revision_of", "revision_of"),
                            ("reassigned_from", "reassigned_from"),
                        ],
                        max_length=20,
                        null=True,
                    ),
                ),
                ("deliverable_id", models.UUIDField(blank=True, null=True)),
                ("pipeline_run_id", models.UUIDField(blank=True, null=True)),
                ("step", models.CharField(blank=True, max_length=63, null=True)),
                ("branch", models.IntegerField(default=0)),
                ("round", models.PositiveSmallIntegerField(default=1)),
                ("dedup_key", models.CharField(blank=True, max_length=200, null=True)),
                ("group_key", models.CharField(blank=True, max_length=200, null=True)),
                ("not_before", models.DateTimeField(blank=True, null=True)),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("due_at", models.DateTimeField(blank=True, null=True)),
                ("timeout_seconds", models.PositiveIntegerField(blank=True, null=True)),
                ("retry", models.JSONField(blank=True, default=dict)),
                ("max_attempts", models.PositiveSmallIntegerField(default=3)),
                (
                    "fence",
                    models.IntegerField(
                        default=0,
                        help_text="Increases with every claim. A write with a lower number is refused.",
                    ),
                ),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                ("stalls", models.PositiveSmallIntegerField(default=0)),
                (
                    "version",
                    models.IntegerField(
                        default=1, help_text="Increases with every transition; the ETag begins with it."
                    ),
                ),
                ("wake_reason", models.CharField(blank=True, max_length=20, null=True)),
                ("error", models.JSONField(blank=True, null=True)),
                ("reviewer_notes", models.TextField(blank=True, null=True)),
                ("chosen_option", models.CharField(blank=True, max_length=200, null=True)),
                ("decided_by", models.CharField(blank=True, max_length=200, null=True)),
                ("blocker_type", models.CharField(blank=True, max_length=63, null=True)),
                ("blocker_message", models.TextField(blank=True, null=True)),
                ("reassign_reason", models.TextField(blank=True, null=True)),
                ("cancel_reason", models.TextField(blank=True, null=True)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("assigned_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("started_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("finished_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("decided_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("blocked_at", models.DateTimeField(blank=True, editable=False, null=True)),
                (
                    "parent",
                    models.ForeignKey(
                        blank=True,
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=models.CASCADE,
                        related_name="children",
                        to="activities.activity",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
                (
                    "decision_rules",
                    models.JSONField(
                        blank=True,
                        help_text="How people decide it: options, quorum, who must not decide, and what happens if nobody does.",
                        null=True,
                    ),
                ),
                (
                    "schedule_id",
                    models.UUIDField(
                        blank=True,
                        help_text="The schedule that it, or the run of its pipeline, comes from.",
                        null=True,
                    ),
                ),
                (
                    "agent_options",
                    models.JSONField(
                        blank=True,
                        db_default={},
                        default=dict,
                        help_text="Options for its agent in addition to the role's settings: model, max_turns.",
                    ),
                ),
                (
                    "mailbox",
                    models.ForeignKey(
                        blank=True,
                        db_constraint=False,
                        db_index=False,
                        help_text="The mailbox whose conversation it continues, instead of its deliverable's.",
                        null=True,
                        on_delete=models.CASCADE,
                        related_name="+",
                        to="activities.mailbox",
                    ),
                ),
                (
                    "files",
                    models.JSONField(
                        blank=True,
                        db_default=[],
                        default=list,
                        help_text="Paths and globs. Other activities of the tenant with overlapping paths never run at the same time.",
                    ),
                ),
                (
                    "group_scope",
                    models.CharField(
                        choices=[("role", "Role"), ("tenant", "Tenant")],
                        db_default="role",
                        default="role",
                        help_text="Whether its group consists of work of its role, or of all roles of the tenant.",
                        max_length=8,
                    ),
                ),
                (
                    "pipeline_id",
                    models.UUIDField(
                        blank=True,
                        help_text="The pipeline of its run, because pauses name pipelines.",
                        null=True,
                    ),
                ),
                (
                    "run_now_at",
                    models.DateTimeField(
                        blank=True,
                        editable=False,
                        help_text="When a person requested a run in spite of pauses. The next run clears it.",
                        null=True,
                    ),
                ),
                (
                    "period_id",
                    models.UUIDField(
                        blank=True,
                        help_text="The period (month) of its deliverable that it plans or belongs to.",
                        null=True,
                    ),
                ),
                (
                    "template",
                    models.CharField(
                        blank=True, help_text="Key of the template of its step.", max_length=63, null=True
                    ),
                ),
                (
                    "indexed_status",
                    models.CharField(
                        db_default="open",
                        editable=False,
                        help_text="See `states.INDEXED`. A trigger sets it.",
                        max_length=20,
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "activities",
                "indexes": [
                    models.Index(
                        condition=models.Q(("tenant__gt", UUID(int=0))),
                        fields=["tenant", "created_at", "id"],
                        name="activities_by_time",
                    ),
                    models.Index(
                        condition=models.Q(("indexed_status", "done"), _negated=True),
                        fields=["tenant", "indexed_status", "created_at"],
                        name="activities_not_done",
                    ),
                    models.Index(
                        condition=models.Q(("schedule_id__isnull", False)),
                        fields=["tenant", "schedule_id", "-created_at"],
                        name="activity_of_schedule",
                    ),
                    models.Index(
                        condition=models.Q(("period_id__isnull", False)),
                        fields=["tenant", "period_id", "-created_at"],
                        name="activity_of_period",
                    ),
                    models.Index(
                        condition=models.Q(
                            ("expires_at__isnull", False),
                            (
                                "indexed_status__in",
                                ["awaiting_review", "awaiting_subtask", "blocked", "open"],
                            ),
                        ),
                        fields=["expires_at"],
                        name="activities_that_expire",
                    ),
                    models.Index(
                        condition=models.Q(("parent__isnull", False)),
                        fields=["parent"],
                        name="activity_children",
                    ),
                    models.Index(
                        condition=models.Q(("assignee_type", "human"), ("indexed_status", "open")),
                        fields=["tenant", "human_role"],
                        name="activities_of_inboxes",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "id"), name="activity_of_tenant"),
                    models.UniqueConstraint(
                        condition=models.Q(
                            ("dedup_key__isnull", False),
                            (
                                "indexed_status__in",
                                [
                                    "awaiting_approval",
                                    "awaiting_review",
                                    "awaiting_subtask",
                                    "blocked",
                                    "open",
                                ],
                            ),
                        ),
                        fields=("tenant", "dedup_key"),
                        name="activity_once_while_live",
                    ),
                    models.UniqueConstraint(
                        models.F("pipeline_run_id"),
                        models.F("step"),
                        models.F("branch"),
                        models.F("round"),
                        models.Case(
                            models.When(
                                models.Q(
                                    ("link_kind__isnull", True), ("link_kind", "revision_of"), _connector="OR"
                                ),
                                then=True,
                            )
                        ),
                        condition=models.Q(("pipeline_run_id__isnull", False)),
                        name="activity_of_step_once",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "status__in",
                                [
                                    "created",
                                    "assigned",
                                    "in_progress",
                                    "awaiting_approval",
                                    "awaiting_subtask",
                                    "awaiting_review",
                                    "blocked",
                                    "done",
                                    "approved",
                                    "rejected",
                                    "reassigned",
                                    "failed",
                                    "needs_review",
                                    "cancelled",
                                ],
                            )
                        ),
                        name="activity_status_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("priority__range", (1, 20))), name="activity_priority_range"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("agent_role__isnull", False), ("assignee_type", "agent")),
                            models.Q(("assignee_type", "human"), ("human_role__isnull", False)),
                            _connector="OR",
                        ),
                        name="activity_has_assignee",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                (
                                    "status__in",
                                    [
                                        "approved",
                                        "cancelled",
                                        "done",
                                        "failed",
                                        "needs_review",
                                        "reassigned",
                                        "rejected",
                                    ],
                                ),
                                _negated=True,
                            ),
                            ("finished_at__isnull", False),
                            _connector="OR",
                        ),
                        name="activity_settled_has_end",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ActivityEvent",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("seq", models.IntegerField()),
                ("verb", models.CharField(max_length=24)),
                ("source", models.CharField(max_length=20, null=True)),
                ("target", models.CharField(max_length=20)),
                (
                    "actor",
                    models.CharField(
                        help_text="user:…, token:…, run:…, or the part of the system that acted.",
                        max_length=200,
                    ),
                ),
                ("run_id", models.UUIDField(null=True)),
                ("detail", models.JSONField(default=dict)),
                ("at", models.DateTimeField(db_default=Now())),
                (
                    "activity",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="events",
                        to="activities.activity",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "ordering": ("activity", "seq"),
                "constraints": [models.UniqueConstraint(fields=("activity", "seq"), name="event_once")],
            },
        ),
        migrations.CreateModel(
            name="ActivityRun",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("running", "running"),
                            ("completed", "completed"),
                            ("failed", "failed"),
                            ("stalled", "stalled"),
                            ("cancelled", "cancelled"),
                        ],
                        default="running",
                        max_length=12,
                    ),
                ),
                ("fence", models.IntegerField()),
                ("attempt", models.PositiveSmallIntegerField()),
                ("wake_reason", models.CharField(max_length=20)),
                (
                    "grant",
                    models.CharField(
                        help_text="The admission grant whose slot this run holds.", max_length=40
                    ),
                ),
                (
                    "worker_id",
                    models.UUIDField(
                        help_text="The process that waits for the agent. Empty after the agent has accepted the work.",
                        null=True,
                    ),
                ),
                (
                    "accepted_at",
                    models.DateTimeField(help_text="When an HTTP agent answered 202.", null=True),
                ),
                (
                    "beats",
                    models.IntegerField(
                        default=0, help_text="Number of heartbeats, if the agent has accepted the run."
                    ),
                ),
                ("agent_version", models.CharField(blank=True, default="", max_length=64)),
                ("timeout_seconds", models.PositiveIntegerField()),
                ("session_id", models.CharField(blank=True, default="", max_length=200)),
                ("usage", models.JSONField(null=True)),
                ("progress", models.JSONField(null=True)),
                ("error", models.JSONField(null=True)),
                ("started_at", models.DateTimeField(db_default=Now())),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "activity",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="runs",
                        to="activities.activity",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
                (
                    "ended_by_tool",
                    models.CharField(
                        blank=True,
                        db_default="",
                        help_text="The tool with which the agent suspended its work. Such a run has no output.",
                        max_length=32,
                    ),
                ),
                (
                    "parked",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="Whether it waits for a batch. It holds no slots while it waits.",
                    ),
                ),
                (
                    "beat_at",
                    models.DateTimeField(
                        help_text="When the last heartbeat arrived; only for people. Recovery compares only `beats`.",
                        null=True,
                    ),
                ),
                (
                    "own_wake",
                    models.JSONField(
                        editable=False,
                        help_text="Of a run that began in the statement that created its activity, so that no wake was recorded: what the wake would say besides `wake_reason`, as `payload` and `provenance`. Its id is the activity's.",
                        null=True,
                    ),
                ),
            ],
            options={
                "ordering": ("-started_at",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("status", "running"), ("worker_id__isnull", False)),
                        fields=["worker_id"],
                        name="runs_of_worker",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("status", "running")), fields=("activity",), name="one_live_run"
                    ),
                    models.UniqueConstraint(fields=("activity", "fence"), name="run_once_per_fence"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Wake",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "reason",
                    models.CharField(
                        choices=[
                            ("new_task", "new_task"),
                            ("rejection", "rejection"),
                            ("scheduled", "scheduled"),
                            ("unblocked", "unblocked"),
                            ("subtask_completed", "subtask_completed"),
                            ("review_approved", "review_approved"),
                            ("review_feedback", "review_feedback"),
                            ("message", "message"),
                        ],
                        max_length=20,
                    ),
                ),
                (
                    "cause",
                    models.CharField(
                        default="wake", help_text="wake, retry, stall, replay, session", max_length=12
                    ),
                ),
                ("payload", models.JSONField(default=dict)),
                (
                    "fingerprint",
                    models.CharField(
                        default="",
                        help_text="Pending wakes with equal fingerprints are merged.",
                        max_length=64,
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[("pending", "pending"), ("taken", "taken"), ("consumed", "consumed")],
                        default="pending",
                        max_length=10,
                    ),
                ),
                ("run_id", models.UUIDField(null=True)),
                (
                    "due_at",
                    models.DateTimeField(
                        help_text="The wake is not offered before this time. The promoter clears it.",
                        null=True,
                    ),
                ),
                (
                    "merged",
                    models.PositiveIntegerField(
                        default=0, help_text="The number of equal wakes that were merged into this one."
                    ),
                ),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "activity",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="wakes",
                        to="activities.activity",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
                (
                    "provenance",
                    models.JSONField(
                        editable=False,
                        help_text="The request that caused it, see tenants.request_context.",
                        null=True,
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("due_at__isnull", False), ("state", "pending")),
                        fields=["due_at"],
                        name="wakes_due",
                    ),
                    models.Index(
                        condition=models.Q(("due_at__isnull", True), ("state", "pending")),
                        fields=["id"],
                        name="wakes_ready",
                    ),
                    models.Index(fields=["activity", "state"], name="wakes_of_activity"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("state", "pending")),
                        fields=("activity", "reason", "fingerprint"),
                        name="equal_wakes_merge",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="ApprovalLink",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[("waiting", "Waiting"), ("woken", "Woken"), ("skipped", "Skipped")],
                        default="waiting",
                        max_length=8,
                    ),
                ),
                (
                    "reason",
                    models.CharField(
                        blank=True, default="", help_text="Why the activity was skipped.", max_length=200
                    ),
                ),
                (
                    "activity",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="approval_links",
                        to="activities.activity",
                    ),
                ),
                (
                    "approval",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="links",
                        to="activities.approval",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "db_table": "approval_linked_activities",
                "ordering": ("approval", "activity"),
                "indexes": [models.Index(fields=["activity", "state"], name="approvals_of_activity")],
                "constraints": [models.UniqueConstraint(fields=("approval", "activity"), name="linked_once")],
            },
        ),
        migrations.CreateModel(
            name="DeadLetter",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("run_id", models.UUIDField(help_text="The run that failed last.", null=True)),
                ("agent_role", models.CharField(max_length=63)),
                (
                    "reason",
                    models.CharField(
                        choices=[
                            ("exhausted", "Exhausted"),
                            ("permanent", "Permanent"),
                            ("stalled", "Stalled"),
                            ("wake_budget", "Wake Budget"),
                            ("rate_limited", "Rate Limited"),
                        ],
                        max_length=12,
                    ),
                ),
                ("fingerprint", models.CharField(help_text="Equal for similar failures.", max_length=64)),
                ("error", models.JSONField(default=dict)),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                ("stalls", models.PositiveSmallIntegerField(default=0)),
                (
                    "cost_usd",
                    models.DecimalField(
                        decimal_places=6,
                        default=0,
                        help_text="The cost that all runs so far have reported.",
                        max_digits=14,
                    ),
                ),
                ("pipeline_run_id", models.UUIDField(null=True)),
                (
                    "state",
                    models.CharField(
                        choices=[("open", "Open"), ("replayed", "Replayed"), ("closed", "Closed")],
                        default="open",
                        max_length=8,
                    ),
                ),
                (
                    "escalation_id",
                    models.UUIDField(help_text="The activity that asks a person to handle it.", null=True),
                ),
                ("handled_at", models.DateTimeField(help_text="When people were notified.", null=True)),
                ("closed_at", models.DateTimeField(null=True)),
                ("closed_by", models.CharField(blank=True, default="", max_length=200)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "activity",
                    models.ForeignKey(
                        blank=True,
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=models.CASCADE,
                        related_name="dead_letters",
                        to="activities.activity",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
                ("mailbox_item_id", models.UUIDField(blank=True, null=True)),
                ("mailbox_key", models.CharField(blank=True, db_default="", default="", max_length=200)),
                (
                    "planning_id",
                    models.UUIDField(help_text="The activity that woke a planner because of it.", null=True),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["tenant", "-created_at", "-id"], name="dead_letter_newest"),
                    models.Index(fields=["tenant", "fingerprint", "state"], name="dead_letter_groups"),
                    models.Index(
                        condition=models.Q(("handled_at__isnull", True)),
                        fields=["id"],
                        name="dead_letters_unhandled",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("state", "open")),
                        fields=("activity",),
                        name="one_open_dead_letter",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("mailbox_item_id__isnull", False), ("state", "open")),
                        fields=("mailbox_item_id",),
                        name="one_open_dead_letter_of_item",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("activity__isnull", False), ("mailbox_item_id__isnull", False), _connector="XOR"
                        ),
                        name="dead_letter_of_one_thing",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Deadline",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "kind",
                    models.CharField(
                        choices=[("reminder", "Reminder"), ("escalation", "Escalation"), ("due", "Due")],
                        max_length=10,
                    ),
                ),
                ("at", models.DateTimeField()),
                (
                    "human_role",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="The role that is reminded, or that is asked from then on.",
                        max_length=63,
                    ),
                ),
                ("happened_at", models.DateTimeField(null=True)),
                (
                    "activity",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="deadlines",
                        to="activities.activity",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "ordering": ("at", "pk"),
                "indexes": [
                    models.Index(
                        condition=models.Q(("happened_at__isnull", True)),
                        fields=["at", "id"],
                        name="deadlines_ahead",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("activity", "kind", "at"), name="deadline_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="ToolCall",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("run_id", models.UUIDField()),
                ("tool", models.CharField(max_length=32)),
                (
                    "digest",
                    models.CharField(
                        help_text="A digest of the tool and the Idempotency-Key or, without a key, the body.",
                        max_length=64,
                    ),
                ),
                ("arguments", models.JSONField(default=dict)),
                ("answer", models.JSONField(default=dict)),
                ("at", models.DateTimeField(db_default=Now())),
                (
                    "activity",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="tool_calls",
                        to="activities.activity",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "ordering": ("at", "pk"),
                "indexes": [models.Index(fields=["activity", "at"], name="tool_calls_of_activity")],
                "constraints": [
                    models.UniqueConstraint(fields=("run_id", "digest"), name="one_effect_per_call")
                ],
            },
        ),
        migrations.CreateModel(
            name="Vote",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "voter",
                    models.CharField(
                        help_text="The identity of the voter, so that nobody votes twice.", max_length=100
                    ),
                ),
                ("actor", models.CharField(max_length=200)),
                (
                    "decision",
                    models.CharField(choices=[("approve", "approve"), ("reject", "reject")], max_length=8),
                ),
                ("chosen_option", models.CharField(max_length=200, null=True)),
                ("notes", models.TextField(blank=True, default="")),
                ("at", models.DateTimeField(db_default=Now())),
                (
                    "activity",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="votes",
                        to="activities.activity",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "ordering": ("at", "pk"),
                "constraints": [models.UniqueConstraint(fields=("activity", "voter"), name="one_vote_each")],
            },
        ),
        migrations.CreateModel(
            name="MailboxBatch",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("consumer", models.CharField(max_length=200)),
                ("fence", models.BigIntegerField()),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("open", "Open"),
                            ("completed", "Completed"),
                            ("failed", "Failed"),
                            ("expired", "Expired"),
                        ],
                        default="open",
                        max_length=10,
                    ),
                ),
                ("size", models.PositiveIntegerField()),
                ("leased_until", models.DateTimeField()),
                ("result", models.JSONField(blank=True, null=True)),
                ("error", models.JSONField(blank=True, null=True)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
                (
                    "mailbox",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="batches",
                        to="activities.mailbox",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "mailbox batches",
                "indexes": [
                    models.Index(
                        condition=models.Q(("state", "open")),
                        fields=["mailbox", "leased_until"],
                        name="mailbox_open_batches",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "id"), name="mailbox_batch_of_tenant"),
                    models.UniqueConstraint(fields=("mailbox", "fence"), name="mailbox_batch_once_per_fence"),
                ],
            },
        ),
        migrations.CreateModel(
            name="MailboxItem",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("agent_role", models.CharField(blank=True, max_length=63, null=True)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("message", "Somebody says something."),
                            ("task_notification", "Work that was started from here has ended."),
                            ("approval_result", "People have decided something."),
                            ("overlay_action", "Somebody did something in a user interface."),
                        ],
                        max_length=20,
                    ),
                ),
                ("content", models.JSONField(blank=True, null=True)),
                ("text", models.TextField(blank=True, default="")),
                (
                    "source",
                    models.CharField(
                        choices=[("user", "User"), ("system", "system"), ("hook", "Hook")],
                        default="user",
                        max_length=8,
                    ),
                ),
                (
                    "priority",
                    models.SmallIntegerField(
                        default=5, validators=[MinValueValidator(0), MaxValueValidator(9)]
                    ),
                ),
                ("is_coalescable", models.BooleanField(default=True)),
                ("client_message_id", models.CharField(blank=True, max_length=200, null=True)),
                ("max_attempts", models.PositiveSmallIntegerField(default=3)),
                ("backoff", models.JSONField(blank=True, default=dict, help_text="multiplier, max_seconds")),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("pending", "Pending"),
                            ("claimed", "Claimed"),
                            ("done", "Done"),
                            ("failed", "Failed"),
                            ("cancelled", "Cancelled"),
                        ],
                        default="pending",
                        max_length=10,
                    ),
                ),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                ("run_after", models.DateTimeField(blank=True, null=True)),
                (
                    "due_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="It is not delivered before this time. Empty: at once.",
                        null=True,
                    ),
                ),
                (
                    "activity_id",
                    models.UUIDField(
                        blank=True, help_text="The activity in which an agent receives it.", null=True
                    ),
                ),
                (
                    "batch_id",
                    models.UUIDField(blank=True, help_text="The last batch that contained it.", null=True),
                ),
                ("error", models.JSONField(blank=True, null=True)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("claimed_at", models.DateTimeField(blank=True, null=True)),
                ("done_at", models.DateTimeField(blank=True, null=True)),
                (
                    "mailbox",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="items",
                        to="activities.mailbox",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
                (
                    "scope_key",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="Only items with the same scope key are delivered together.",
                        max_length=200,
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["mailbox", "-created_at", "-id"], name="mailbox_items_newest"),
                    models.Index(
                        condition=models.Q(("state__in", ["pending", "claimed"])),
                        fields=["mailbox", "priority", "id"],
                        name="mailbox_items_open",
                    ),
                    models.Index(
                        condition=models.Q(("activity_id__isnull", False)),
                        fields=["activity_id"],
                        name="mailbox_items_of_activity",
                    ),
                    models.Index(
                        condition=models.Q(("batch_id__isnull", False)),
                        fields=["batch_id"],
                        name="mailbox_items_of_batch",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("client_message_id__isnull", False)),
                        fields=("mailbox", "client_message_id"),
                        name="mailbox_item_once",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("priority__range", (0, 9))), name="mailbox_priority_range"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("is_coalescable", True), ("kind", "task_notification"), _negated=True
                        ),
                        name="notifications_come_alone",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Subagent",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "continues_id",
                    models.UUIDField(
                        blank=True,
                        help_text="The earlier subagent whose conversation it continues.",
                        null=True,
                    ),
                ),
                ("subagent_type", models.CharField(max_length=63)),
                ("description", models.CharField(blank=True, default="", max_length=200)),
                ("prompt", models.TextField()),
                ("model", models.CharField(blank=True, default="", max_length=200)),
                ("max_turns", models.PositiveIntegerField(blank=True, null=True)),
                ("tool_call_id", models.CharField(blank=True, default="", max_length=200)),
                ("run_in_background", models.BooleanField(default=True)),
                ("silent", models.BooleanField(default=False)),
                (
                    "parent_mailbox",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="The key of the mailbox that is notified of its end.",
                        max_length=200,
                    ),
                ),
                ("created_by", models.CharField(max_length=200)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "activity",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="+",
                        to="activities.activity",
                    ),
                ),
                (
                    "conversation",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="+",
                        to="activities.mailbox",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["tenant", "-created_at", "-id"], name="subagents_newest")],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "activity"), name="subagent_of_activity"),
                    models.UniqueConstraint(
                        condition=models.Q(
                            models.Q(("parent_mailbox", ""), _negated=True),
                            models.Q(("tool_call_id", ""), _negated=True),
                        ),
                        fields=("tenant", "parent_mailbox", "tool_call_id"),
                        name="subagent_once_per_call",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ProviderBatch",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "agent_role",
                    models.CharField(
                        help_text="The role whose settings lead to the provider.", max_length=63
                    ),
                ),
                (
                    "provider",
                    models.CharField(
                        help_text="Adapter, host and port, and a digest of the credential.", max_length=400
                    ),
                ),
                ("model", models.CharField(max_length=200)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("bound", "Its items are chosen; it is to be sent."),
                            ("sending", "It was or is being sent; whether it arrived is not known yet."),
                            ("sent", "The provider has it."),
                            ("ended", "All its answers are in, or nobody wants them any more."),
                            ("refused", "The provider did not take it."),
                        ],
                        default="bound",
                        max_length=8,
                    ),
                ),
                ("size", models.PositiveIntegerField(help_text="Number of its items.")),
                (
                    "sent",
                    models.PositiveIntegerField(default=0, help_text="Number of items that were sent last."),
                ),
                (
                    "sendings",
                    models.PositiveSmallIntegerField(
                        default=0,
                        help_text="How often it was sent. It is sent again if the provider's answer was lost and the provider does not have the batch.",
                    ),
                ),
                (
                    "external_id",
                    models.CharField(
                        blank=True, default="", help_text="The provider's id of the batch.", max_length=100
                    ),
                ),
                (
                    "not_ours",
                    ArrayField(
                        base_field=models.CharField(max_length=100),
                        default=list,
                        help_text="Batches of the provider that were mistaken for this one.",
                        size=None,
                    ),
                ),
                ("error", models.JSONField(null=True)),
                (
                    "due_at",
                    models.DateTimeField(
                        db_default=Now(),
                        help_text="When it is processed next. A process first moves this time forward, as a lease.",
                    ),
                ),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("sent_at", models.DateTimeField(help_text="When it was last sent.", null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
                (
                    "is_found",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="Whether its id is from the provider's list of batches, so that the ids of its answers must confirm it.",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "provider batches",
                "ordering": ("-id",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("state__in", ["bound", "sending", "sent"])),
                        fields=["due_at"],
                        name="batches_due",
                    )
                ],
                "constraints": [models.UniqueConstraint(fields=("tenant", "id"), name="batch_of_tenant")],
            },
        ),
        migrations.CreateModel(
            name="BatchItem",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("run_id", models.UUIDField()),
                ("fence", models.IntegerField()),
                (
                    "briefing",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="A digest of what the agent was told about its work.",
                        max_length=64,
                    ),
                ),
                ("agent_role", models.CharField(max_length=63)),
                ("provider", models.CharField(max_length=400)),
                ("model", models.CharField(max_length=200)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("collected", "It waits for a batch."),
                            ("bound", "It belongs to a batch."),
                            ("answered", "Its answer was the result of its run."),
                            ("failed", "It failed; the run's retry policy decides what follows."),
                            ("moved", "It went to the real-time route instead."),
                            ("dropped", "Its run was over before its answer."),
                        ],
                        default="collected",
                        max_length=9,
                    ),
                ),
                (
                    "body",
                    models.JSONField(help_text="The request. Empty after the item was closed.", null=True),
                ),
                ("bytes", models.PositiveIntegerField(help_text="The size of the request.")),
                (
                    "begun",
                    models.JSONField(
                        help_text="An answer with which the conversation continues on the real-time route.",
                        null=True,
                    ),
                ),
                (
                    "leave_at",
                    models.DateTimeField(help_text="When it moves to the real-time route at the latest."),
                ),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("closed_at", models.DateTimeField(null=True)),
                (
                    "activity",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="batch_items",
                        to="activities.activity",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
                (
                    "batch",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=models.CASCADE,
                        related_name="items",
                        to="activities.providerbatch",
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("state", "collected")),
                        fields=["tenant", "provider", "model", "id"],
                        name="batch_items_collected",
                    ),
                    models.Index(
                        condition=models.Q(("state__in", ["collected", "bound"])),
                        fields=["leave_at"],
                        name="batch_items_leaving",
                    ),
                    models.Index(
                        condition=models.Q(("batch__isnull", False)),
                        fields=["batch"],
                        name="batch_items_of_batch",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("activity", "fence"), name="batch_item_once_per_run")
                ],
            },
        ),
        migrations.CreateModel(
            name="BulkJob",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "action",
                    models.CharField(
                        choices=[
                            ("cancel", "Cancel"),
                            ("retry", "Retry"),
                            ("reassign", "Reassign"),
                            ("priority", "Priority"),
                        ],
                        max_length=10,
                    ),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("running", "Running"),
                            ("completed", "Completed"),
                            ("cancelled", "Cancelled"),
                        ],
                        default="running",
                        max_length=10,
                    ),
                ),
                (
                    "filter",
                    models.JSONField(
                        default=dict,
                        help_text="The filter from the request. The items were selected with it once.",
                    ),
                ),
                (
                    "arguments",
                    models.JSONField(
                        default=dict,
                        help_text="The arguments of the action: a reason, an assignee, or a priority.",
                    ),
                ),
                ("total", models.PositiveIntegerField(default=0)),
                ("done", models.PositiveIntegerField(default=0)),
                ("skipped", models.PositiveIntegerField(default=0)),
                ("failed", models.PositiveIntegerField(default=0)),
                ("created_by", models.CharField(max_length=200)),
                ("cancelled_by", models.CharField(blank=True, default="", max_length=200)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("started_at", models.DateTimeField(editable=False, null=True)),
                (
                    "updated_at",
                    models.DateTimeField(
                        db_default=Now(), editable=False, help_text="When its progress was last recorded."
                    ),
                ),
                ("finished_at", models.DateTimeField(editable=False, null=True)),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["tenant", "-created_at", "-id"], name="bulk_job_newest"),
                    models.Index(
                        condition=models.Q(("status", "running")),
                        fields=["created_at"],
                        name="bulk_job_running",
                    ),
                ],
                "constraints": [models.UniqueConstraint(fields=("tenant", "id"), name="bulk_job_of_tenant")],
            },
        ),
        migrations.CreateModel(
            name="BulkItem",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("waiting", "Waiting"),
                            ("done", "Done"),
                            ("skipped", "it was not in a state in which this can happen"),
                            ("failed", "Failed"),
                        ],
                        default="waiting",
                        max_length=8,
                    ),
                ),
                (
                    "alone",
                    models.BooleanField(
                        default=False, help_text="Whether it is processed in a transaction of its own."
                    ),
                ),
                ("error", models.JSONField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "activity",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=models.CASCADE,
                        related_name="+",
                        to="activities.activity",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="items",
                        to="activities.bulkjob",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("state", "waiting")),
                        fields=["job", "alone", "activity"],
                        name="bulk_item_waiting",
                    ),
                    models.Index(fields=["job", "id"], name="bulk_item_of_job"),
                ],
                "constraints": [models.UniqueConstraint(fields=("job", "activity"), name="bulk_item_once")],
            },
        ),
        migrations.CreateModel(
            name="Condition",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "name",
                    models.CharField(help_text="Its kind and its subject.", max_length=400, unique=True),
                ),
                ("kind", models.CharField(help_text="The kind of its alerts.", max_length=32)),
                (
                    "over",
                    models.CharField(help_text="The message to people when it has ended.", max_length=200),
                ),
                ("facts", models.JSONField(default=dict, help_text="Facts for programs, as in its alerts.")),
                ("since", models.DateTimeField(db_default=Now())),
                (
                    "tenants",
                    models.JSONField(default=list, help_text="Ids of the tenants that were notified."),
                ),
            ],
            options={
                "verbose_name": "platform condition",
            },
        ),
        migrations.CreateModel(
            name="CountingMark",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("counted", models.BigIntegerField(default=0)),
                ("seen", models.BigIntegerField(default=0)),
                (
                    "barrier",
                    models.BigIntegerField(default=0, help_text="The id of a transaction, with its epoch."),
                ),
                ("at", models.DateTimeField(db_default=Now(), help_text="When a leader last counted.")),
                (
                    "complete_at",
                    models.DateTimeField(
                        db_default=Now(), help_text="Everything until this time is included in the counters."
                    ),
                ),
                (
                    "noted_at",
                    models.DateTimeField(db_default=Now(), help_text="When `seen` was the newest event."),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Counter",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=32)),
                (
                    "role",
                    models.CharField(
                        help_text="Empty for people's work, and where there is no role.", max_length=63
                    ),
                ),
                ("status", models.CharField(max_length=20)),
                (
                    "le",
                    models.FloatField(
                        help_text="The upper bound of the bucket. Infinity for the last bucket, and if it is not a histogram."
                    ),
                ),
                ("count", models.BigIntegerField()),
                ("total", models.FloatField(help_text="The sum of the observed values.")),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("name", "role", "status", "le"), name="counted_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="HeldAnswer",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "version",
                    models.PositiveIntegerField(
                        db_column="shown", help_text="The version of the item that the person saw."
                    ),
                ),
                ("action", models.CharField(db_column="deed", max_length=20)),
                (
                    "outcome",
                    models.CharField(
                        db_column="words", help_text="The name of the action once it is done.", max_length=60
                    ),
                ),
                (
                    "form_values",
                    models.JSONField(
                        db_column="said", default=dict, help_text="Notes, chosen option and result."
                    ),
                ),
                ("due_at", models.DateTimeField(help_text="When it takes effect.")),
                (
                    "refusal",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="Why it could not take effect. Empty while it is held.",
                        max_length=500,
                    ),
                ),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "activity",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="+",
                        to="activities.activity",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.DO_NOTHING,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "request_id",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="The request that gave it, for the audit trail.",
                        max_length=64,
                    ),
                ),
                (
                    "ip",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="The address of that request.",
                        max_length=45,
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("refusal", "")), fields=["due_at"], name="held_answers_due"
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "user", "activity"), name="answer_held_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="SnoozedItem",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("until", models.DateTimeField()),
                (
                    "version",
                    models.IntegerField(help_text="The version of the activity when it was snoozed."),
                ),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "activity",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.DO_NOTHING,
                        related_name="+",
                        to="activities.activity",
                    ),
                ),
                (
                    "membership",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.DO_NOTHING,
                        related_name="+",
                        to="tenants.membership",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["tenant", "membership"], name="snoozed_by_member")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("tenant", "activity", "membership"), name="snoozed_once_per_member"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="SystemJob",
            fields=[
                ("name", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("owner", models.CharField(help_text="The module that runs it.", max_length=200)),
                ("period_seconds", models.FloatField(help_text="How often it is due.")),
                ("budget_seconds", models.FloatField(help_text="How long one of its statements may take.")),
                ("epoch", models.BigIntegerField(help_text="The epoch of the leader that ran it.")),
                ("started_at", models.DateTimeField(help_text="When the last run began.", null=True)),
                (
                    "finished_at",
                    models.DateTimeField(
                        help_text="When a run last ended, with or without success.", null=True
                    ),
                ),
                ("succeeded_at", models.DateTimeField(help_text="When a run last succeeded.", null=True)),
                ("duration_seconds", models.FloatField(default=0.0, help_text="How long the last run took.")),
                ("lag_seconds", models.FloatField(default=0.0, help_text="How late the last run began.")),
                (
                    "failures",
                    models.IntegerField(
                        default=0,
                        help_text="Number of failures in a row. Waiting for a server is not a failure.",
                    ),
                ),
                (
                    "error",
                    models.CharField(
                        blank=True, default="", help_text="Why the last run failed.", max_length=200
                    ),
                ),
            ],
            options={
                "verbose_name": "system job",
            },
        ),
        migrations.CreateModel(
            name="LeaderLease",
            fields=[
                ("id", models.SmallIntegerField(default=1, primary_key=True, serialize=False)),
                (
                    "holder",
                    models.UUIDField(help_text="A random id that the process generates when it starts."),
                ),
                (
                    "epoch",
                    models.BigIntegerField(
                        help_text="Increases whenever the lease gets another holder. Writes of earlier epochs are refused."
                    ),
                ),
                ("host", models.CharField(max_length=255)),
                ("pid", models.IntegerField()),
                ("since", models.DateTimeField(db_default=Now())),
                (
                    "expires_at",
                    models.DateTimeField(help_text="After this time, another process may take over."),
                ),
                (
                    "outage_began_at",
                    models.DateTimeField(
                        help_text="The time from which nobody could renew the lease, in the last outage of PostgreSQL.",
                        null=True,
                    ),
                ),
                (
                    "outage_ended_at",
                    models.DateTimeField(
                        help_text="The time from which the lease could be renewed again.", null=True
                    ),
                ),
            ],
            options={
                "constraints": [models.CheckConstraint(condition=models.Q(("id", 1)), name="one_leader")],
            },
        ),
        migrations.CreateModel(
            name="FailuresInARow",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "kind",
                    models.CharField(choices=[("role", "Role"), ("schedule", "Schedule")], max_length=8),
                ),
                (
                    "subject",
                    models.CharField(help_text="The role, or the id of the schedule.", max_length=63),
                ),
                ("count", models.PositiveBigIntegerField()),
                (
                    "error_code",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="The error code of the last failure.",
                        max_length=200,
                    ),
                ),
                ("since", models.DateTimeField(help_text="When the first failure was noticed.")),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "failures in a row",
                "indexes": [models.Index(fields=["count"], name="failures_most")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("tenant", "kind", "subject"), name="failures_once_per_subject"
                    )
                ],
            },
        ),
        migrations.RunSQL(ROOM_FOR_LATER_VERSIONS),
        migrations.RunSQL(FIRST_MARK),
    ]
