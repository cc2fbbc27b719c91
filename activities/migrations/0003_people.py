import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

import tenants.identifiers
from activities import states
from tenants.row_security import IsolateTenant, TenantKey

CHILDREN = [
    "approval_linked_activities",
    "activities_vote",
    "activities_deadline",
    "activities_toolcall",
    "activities_deadletter",
]


class Migration(migrations.Migration):
    dependencies = [
        ("activities", "0002_isolation"),
        ("tenants", "0004_requests"),
    ]

    operations = [
        migrations.AddField(
            model_name="activity",
            name="decision_rules",
            field=models.JSONField(
                blank=True,
                help_text="How people decide it: options, quorum, who must not decide, and what happens if nobody does.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="activityrun",
            name="ended_by_tool",
            field=models.CharField(
                blank=True,
                db_default="",
                help_text="The tool with which the agent suspended its work. Such a run has no output.",
                max_length=32,
            ),
        ),
        migrations.AlterField(
            model_name="activity",
            name="link_kind",
            field=models.CharField(
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
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
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
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="approval_links",
                        to="activities.activity",
                    ),
                ),
                (
                    "approval",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="links",
                        to="activities.approval",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
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
                (
                    "id",
                    models.UUIDField(
                        default=tenants.identifiers.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
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
                        ],
                        max_length=12,
                    ),
                ),
                (
                    "fingerprint",
                    models.CharField(help_text="Equal for similar failures.", max_length=64),
                ),
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
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "activity",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="dead_letters",
                        to="activities.activity",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
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
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Deadline",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=tenants.identifiers.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
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
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deadlines",
                        to="activities.activity",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
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
                (
                    "id",
                    models.UUIDField(
                        default=tenants.identifiers.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
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
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "activity",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="tool_calls",
                        to="activities.activity",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
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
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "activity",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="votes",
                        to="activities.activity",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
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
        IsolateTenant("activities_approval"),
        *[IsolateTenant(table) for table in CHILDREN],
        TenantKey("activities_approval", "id", "activities_activity"),
        TenantKey("approval_linked_activities", "approval_id", "activities_approval"),
        *[TenantKey(table, "activity_id", "activities_activity") for table in CHILDREN],
        # The table of states has grown: holding, tripping, and reassigning what has failed.
        migrations.RunSQL(states.install_status_guard(is_indexed=False), migrations.RunSQL.noop),
    ]
