"""The tables of tenants: who works in them, money, events, webhooks, the audit trail and retention."""

from decimal import Decimal

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import migrations, models
from django.db.models.functions import Now

from tenants.identifiers import uuid7
from tenants.models import base


class Migration(migrations.Migration):
    initial = True
    replaces = [("tenants", "0030_tokens_of_deleted_accounts")]  # the last of those that it stands for
    dependencies = [
        ("tenants", "0001_roles"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="BreakGlass",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "opened_for",
                    models.UUIDField(help_text="The tenant's id. Empty for all tenants.", null=True),
                ),
                ("slug", models.CharField(blank=True, max_length=63)),
                ("reason", models.CharField(max_length=500)),
                ("opened_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("expires_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=models.CASCADE, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
            options={
                "verbose_name": "break-glass session",
                "indexes": [
                    models.Index(
                        condition=models.Q(("ended_at__isnull", True)),
                        fields=["user"],
                        name="glass_that_is_broken",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="DepartedTenant",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        editable=False, help_text="The tenant's id.", primary_key=True, serialize=False
                    ),
                ),
                ("slug", models.SlugField(max_length=63)),
                ("began_at", models.DateTimeField(db_default=Now(), help_text="When the deletion began.")),
                (
                    "erased_at",
                    models.DateTimeField(help_text="Empty until the deletion has ended.", null=True),
                ),
                (
                    "counts",
                    models.JSONField(
                        default=dict, help_text="Number of deleted rows by table, and what else was deleted."
                    ),
                ),
            ],
            options={
                "verbose_name": "off-boarded tenant",
                "ordering": ("-began_at",),
            },
        ),
        migrations.CreateModel(
            name="RetentionPass",
            fields=[
                ("kind", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("due_at", models.DateTimeField(db_default=Now())),
                ("began_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(help_text="Empty while the pass runs.", null=True)),
                (
                    "reached",
                    models.UUIDField(help_text="The last tenant that this pass has processed.", null=True),
                ),
                (
                    "rows",
                    models.BigIntegerField(default=0, help_text="Number of rows deleted by the last pass."),
                ),
                (
                    "total",
                    models.BigIntegerField(default=0, help_text="Number of rows deleted by all passes."),
                ),
            ],
            options={
                "verbose_name_plural": "retention passes",
                "indexes": [models.Index(fields=["due_at"], name="retention_due")],
            },
        ),
        migrations.CreateModel(
            name="SecondFactor",
            fields=[
                (
                    "user",
                    models.OneToOneField(
                        on_delete=models.CASCADE,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "secret_sealed",
                    models.TextField(
                        editable=False,
                        help_text="The encrypted secret of the codes, and the unused recovery codes.",
                    ),
                ),
                (
                    "last_step",
                    models.BigIntegerField(
                        default=-1,
                        editable=False,
                        help_text="The newest code that was accepted. No code is accepted twice.",
                    ),
                ),
                (
                    "confirmed_at",
                    models.DateTimeField(
                        editable=False,
                        help_text="Since when codes are required. Empty until the first code was entered correctly.",
                        null=True,
                    ),
                ),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
            ],
            options={
                "verbose_name": "second factor",
            },
        ),
        migrations.CreateModel(
            name="Passkey",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "name",
                    models.CharField(
                        help_text="The name by which its owner recognizes the device.", max_length=60
                    ),
                ),
                (
                    "credential",
                    models.BinaryField(
                        help_text="The id of the credential in the browser.", max_length=1023, unique=True
                    ),
                ),
                ("public_key", models.BinaryField()),
                (
                    "uses",
                    models.BigIntegerField(
                        editable=False,
                        help_text="The device's counter of uses. A lower counter reveals a copy. 0 if the device does not count.",
                    ),
                ),
                (
                    "answered",
                    models.BinaryField(
                        help_text="The last challenge that it has answered. It cannot answer the same challenge twice."
                    ),
                ),
                ("used_at", models.DateTimeField(editable=False, null=True)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "factor",
                    models.ForeignKey(
                        on_delete=models.CASCADE, related_name="passkeys", to="tenants.secondfactor"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Plan",
            fields=[
                ("key", models.SlugField(max_length=63, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=200)),
                (
                    "max_concurrency",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="How many activities of a tenant may run at once, over all roles. Empty: no limit.",
                        null=True,
                    ),
                ),
                (
                    "max_concurrency_per_group",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="How many activities with one group key and group_scope tenant may run at once. Empty: 1.",
                        null=True,
                        validators=[MinValueValidator(1)],
                    ),
                ),
                (
                    "roles",
                    models.JSONField(
                        blank=True,
                        default=dict,
                        help_text='How many activities of a role a tenant may run at once, such as {"writer": 3}. Other roles: as the registry says.',
                        validators=[base.validate_role_caps],
                    ),
                ),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
            ],
            options={
                "ordering": ("key",),
            },
        ),
        migrations.CreateModel(
            name="Tenant",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("slug", models.SlugField(max_length=63, unique=True)),
                ("name", models.CharField(max_length=200)),
                ("is_active", models.BooleanField(default=True)),
                (
                    "paused",
                    models.BooleanField(
                        default=False,
                        help_text="Whether all its work is paused: no new work starts, and current runs end normally.",
                    ),
                ),
                (
                    "max_concurrency",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="How many activities may run at once, over all roles. Empty: its plan decides; without a plan, no limit.",
                        null=True,
                    ),
                ),
                (
                    "weight",
                    models.PositiveIntegerField(
                        default=1,
                        help_text="Share of busy workers relative to other tenants: weight 3 gets three times the slot-seconds of weight 1.",
                        validators=[MinValueValidator(1), MaxValueValidator(1000)],
                    ),
                ),
                ("timezone", models.CharField(default="UTC", max_length=64)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "max_concurrency_per_group",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="How many activities with one group key and group_scope tenant may run at once. Empty: its plan decides, otherwise 1.",
                        null=True,
                        validators=[MinValueValidator(1)],
                    ),
                ),
                (
                    "bounds",
                    models.JSONField(
                        blank=True,
                        db_default=models.Value({}, models.JSONField()),
                        default=dict,
                        help_text='How many objects of a kind it may own, such as {"schedules": 50}. For other kinds, the limit of the platform applies.',
                    ),
                ),
                (
                    "plan",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=models.PROTECT,
                        related_name="+",
                        to="tenants.plan",
                    ),
                ),
            ],
            options={
                "ordering": ("slug",),
            },
        ),
        migrations.CreateModel(
            name="ApiToken",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=100)),
                (
                    "role",
                    models.CharField(
                        choices=[
                            ("admin", "Admin"),
                            ("operator", "Operator"),
                            ("reviewer", "Reviewer"),
                            ("viewer", "Viewer"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "prefix",
                    models.CharField(
                        editable=False,
                        help_text="The first characters, to recognize the token.",
                        max_length=16,
                    ),
                ),
                ("secret_hash", models.CharField(editable=False, max_length=64, unique=True)),
                (
                    "scopes",
                    models.JSONField(
                        blank=True,
                        default=list,
                        help_text="If empty, the token has all permissions of its role.",
                    ),
                ),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("revoked_at", models.DateTimeField(blank=True, null=True)),
                ("last_used_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
                (
                    "platform",
                    models.BooleanField(
                        default=False,
                        help_text="Also allows changes to the registry of agents that all tenants share.",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        blank=True,
                        db_constraint=False,
                        db_index=False,
                        editable=False,
                        help_text="The person behind the token. Empty: none, so that the token has no vote.",
                        null=True,
                        on_delete=models.DO_NOTHING,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "verbose_name": "API token",
                "ordering": ("-created_at",),
            },
        ),
        migrations.CreateModel(
            name="Membership",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "role",
                    models.CharField(
                        choices=[
                            ("admin", "Admin"),
                            ("operator", "Operator"),
                            ("reviewer", "Reviewer"),
                            ("viewer", "Viewer"),
                        ],
                        default="reviewer",
                        max_length=16,
                    ),
                ),
                (
                    "human_roles",
                    models.JSONField(blank=True, default=list, help_text='For example ["editor"].'),
                ),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=models.CASCADE, related_name="memberships", to=settings.AUTH_USER_MODEL
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
                (
                    "slack_user",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        editable=False,
                        help_text="The Slack user whose buttons decide in this person's name, as <workspace id>/<user id>. Empty: none.",
                        max_length=64,
                    ),
                ),
            ],
            options={
                "verbose_name": "member",
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "user"), name="membership_once_per_tenant"),
                    models.UniqueConstraint(
                        condition=models.Q(("slack_user", ""), _negated=True),
                        fields=("tenant", "slack_user"),
                        name="slack_user_is_one_member",
                    ),
                    models.UniqueConstraint(fields=("tenant", "id"), name="membership_of_tenant"),
                ],
            },
        ),
        migrations.CreateModel(
            name="IdempotentRequest",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "digest",
                    models.CharField(
                        help_text="A digest of the caller, the path and the key.", max_length=64
                    ),
                ),
                (
                    "request_digest",
                    models.CharField(
                        help_text="A digest of the request. A different request cannot use the same key.",
                        max_length=64,
                    ),
                ),
                ("status_code", models.PositiveSmallIntegerField()),
                ("headers", models.JSONField(default=dict)),
                ("body", models.BinaryField()),
                ("created_at", models.DateTimeField(db_default=Now())),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["created_at"], name="idempotent_requests_by_age")],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "digest"), name="idempotency_key_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="Channel",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("kind", models.CharField(help_text="For example google-ads.", max_length=63)),
                ("name", models.CharField(max_length=200)),
                (
                    "status",
                    models.CharField(
                        choices=[("active", "Active"), ("expired", "Expired"), ("disabled", "Disabled")],
                        default="active",
                        editable=False,
                        max_length=8,
                    ),
                ),
                ("status_since", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "expires_at",
                    models.DateTimeField(
                        blank=True, help_text="When it expires. Empty if that is not known.", null=True
                    ),
                ),
                (
                    "details",
                    models.JSONField(
                        blank=True,
                        default=dict,
                        help_text="Data for agents, such as account numbers. No secrets.",
                    ),
                ),
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
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("expires_at__isnull", False), ("status", "active")),
                        fields=["expires_at"],
                        name="channels_that_expire",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("tenant", "kind", "name"), name="channel_named_once_per_kind"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Budget",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=200)),
                (
                    "agent_role",
                    models.CharField(blank=True, help_text="Empty for all roles.", max_length=63, null=True),
                ),
                (
                    "deliverable_id",
                    models.UUIDField(blank=True, help_text="Empty for all deliverables.", null=True),
                ),
                (
                    "activity_id",
                    models.UUIDField(blank=True, help_text="Empty for all activities.", null=True),
                ),
                (
                    "unit",
                    models.CharField(
                        choices=[("dollars", "Dollars"), ("tokens", "Tokens"), ("runs", "Runs")],
                        default="dollars",
                        max_length=8,
                    ),
                ),
                (
                    "period",
                    models.CharField(
                        choices=[("total", "Total"), ("day", "Day"), ("month", "Month")],
                        default="total",
                        max_length=8,
                    ),
                ),
                (
                    "cap",
                    models.DecimalField(decimal_places=12, max_digits=36, validators=[MinValueValidator(0)]),
                ),
                (
                    "warning_share",
                    models.DecimalField(
                        decimal_places=3,
                        default=Decimal("0.8"),
                        help_text="People are notified once when this share of the cap is spent.",
                        max_digits=4,
                        validators=[MinValueValidator(0), MaxValueValidator(1)],
                    ),
                ),
                (
                    "estimate",
                    models.DecimalField(
                        blank=True,
                        decimal_places=12,
                        help_text="The amount that is reserved for each run when it starts.",
                        max_digits=36,
                        null=True,
                        validators=[MinValueValidator(0)],
                    ),
                ),
                ("spent", models.DecimalField(decimal_places=12, default=0, editable=False, max_digits=36)),
                (
                    "reserved",
                    models.DecimalField(decimal_places=12, default=0, editable=False, max_digits=36),
                ),
                (
                    "overshoot",
                    models.DecimalField(
                        decimal_places=12,
                        default=0,
                        editable=False,
                        help_text="By how much the cap was exceeded in this period.",
                        max_digits=36,
                    ),
                ),
                ("period_start", models.DateField(editable=False)),
                ("warned_at", models.DateTimeField(editable=False, null=True)),
                (
                    "waiting_since",
                    models.DateTimeField(
                        editable=False,
                        help_text="Since when work has been waiting for this budget.",
                        null=True,
                    ),
                ),
                (
                    "wanted",
                    models.DecimalField(
                        decimal_places=12,
                        editable=False,
                        help_text="The smallest amount that the waiting work needs.",
                        max_digits=36,
                        null=True,
                    ),
                ),
                (
                    "recount_at",
                    models.DateTimeField(
                        editable=False,
                        help_text="When the amount is calculated from the ledger again.",
                        null=True,
                    ),
                ),
                (
                    "version",
                    models.IntegerField(
                        default=1,
                        editable=False,
                        help_text="Increases with every change; the ETag begins with it.",
                    ),
                ),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("deleted_at", models.DateTimeField(editable=False, null=True)),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("waiting_since__isnull", False)),
                        fields=["id"],
                        name="budgets_waited_for",
                    ),
                    models.Index(
                        condition=models.Q(("recount_at__isnull", False)),
                        fields=["recount_at"],
                        name="budgets_to_recount",
                    ),
                ],
                "constraints": [models.UniqueConstraint(fields=("tenant", "id"), name="budget_of_tenant")],
            },
        ),
        migrations.CreateModel(
            name="BudgetWait",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("activity_id", models.UUIDField()),
                (
                    "amount",
                    models.DecimalField(
                        decimal_places=12,
                        help_text="The amount that would be reserved for its run.",
                        max_digits=36,
                    ),
                ),
                ("priority", models.SmallIntegerField()),
                ("since", models.DateTimeField(db_default=Now())),
                (
                    "budget",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="waits",
                        to="tenants.budget",
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
                "indexes": [models.Index(fields=["budget", "priority", "since"], name="waits_in_order")],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "activity_id"), name="waits_for_one_budget")
                ],
            },
        ),
        migrations.CreateModel(
            name="Reservation",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("run_id", models.UUIDField()),
                ("activity_id", models.UUIDField()),
                ("amount", models.DecimalField(decimal_places=12, max_digits=36)),
                ("reserved_at", models.DateTimeField(db_default=Now())),
                (
                    "budget",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="reservations",
                        to="tenants.budget",
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
                "indexes": [models.Index(fields=["budget"], name="reservations_of_budget")],
                "constraints": [
                    models.UniqueConstraint(fields=("run_id", "budget"), name="reserved_once_per_run")
                ],
            },
        ),
        migrations.CreateModel(
            name="UsageEntry",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("at", models.DateTimeField(db_default=Now(), editable=False)),
                ("day", models.DateField(help_text="The day on which it was reported, in UTC.")),
                ("agent_role", models.CharField(max_length=63)),
                ("deliverable_id", models.UUIDField(null=True)),
                ("activity_id", models.UUIDField()),
                ("run_id", models.UUIDField()),
                ("pipeline_run_id", models.UUIDField(null=True)),
                ("model", models.CharField(blank=True, default="", max_length=200)),
                ("input_tokens", models.BigIntegerField(default=0)),
                ("output_tokens", models.BigIntegerField(default=0)),
                ("dollars", models.DecimalField(decimal_places=12, default=0, max_digits=36)),
                ("runs", models.SmallIntegerField(default=0)),
                (
                    "unpriced",
                    models.BooleanField(
                        default=False,
                        help_text="Whether the cost of these tokens is unknown: none was reported, and the price of the model is not known.",
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
                "verbose_name_plural": "usage entries",
                "indexes": [
                    models.Index(fields=["tenant", "day", "agent_role"], name="usage_by_day_and_role")
                ],
            },
        ),
        migrations.CreateModel(
            name="EventLog",
            fields=[
                (
                    "tenant",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=models.CASCADE,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to="tenants.tenant",
                    ),
                ),
                ("last_number", models.BigIntegerField(db_default=0, default=0)),
                (
                    "listened_until",
                    models.DateTimeField(
                        help_text="Until then, a client follows the log and has to be notified of changes.",
                        null=True,
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="WebhookEndpoint",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("url", models.CharField(max_length=2000)),
                ("description", models.CharField(blank=True, default="", max_length=200)),
                (
                    "kinds",
                    models.JSONField(
                        blank=True, default=list, help_text="The kinds of events to send. If empty: all."
                    ),
                ),
                ("enabled", models.BooleanField(default=True)),
                (
                    "secret_sealed",
                    models.TextField(
                        editable=False, help_text="The encrypted secret for signatures, and the previous one."
                    ),
                ),
                (
                    "previous_until",
                    models.DateTimeField(
                        editable=False,
                        help_text="Until when messages are also signed with the previous secret.",
                        null=True,
                    ),
                ),
                (
                    "off_reason",
                    models.CharField(
                        blank=True,
                        choices=[("gone", "Gone"), ("failing", "Failing")],
                        default="",
                        editable=False,
                        max_length=8,
                    ),
                ),
                (
                    "failing_since",
                    models.DateTimeField(
                        editable=False,
                        help_text="The time of the first failure since the last success.",
                        null=True,
                    ),
                ),
                (
                    "failures",
                    models.IntegerField(
                        default=0,
                        editable=False,
                        help_text="Number of failed attempts since the last success.",
                    ),
                ),
                (
                    "paused_until",
                    models.DateTimeField(
                        editable=False,
                        help_text="Nothing is sent before this time, because the last attempts have failed.",
                        null=True,
                    ),
                ),
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
            ],
            options={
                "verbose_name": "webhook",
                "indexes": [
                    models.Index(condition=models.Q(("enabled", True)), fields=["id"], name="webhooks_in_use")
                ],
                "constraints": [models.UniqueConstraint(fields=("tenant", "id"), name="webhook_of_tenant")],
            },
        ),
        migrations.CreateModel(
            name="WebhookDelivery",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "event_number",
                    models.BigIntegerField(help_text="Empty for a test, which is not an event.", null=True),
                ),
                ("kind", models.CharField(max_length=32)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("pending", "Pending"),
                            ("sending", "Sending"),
                            ("delivered", "Delivered"),
                            ("failed", "Failed"),
                            ("dropped", "Dropped"),
                        ],
                        default="pending",
                        max_length=9,
                    ),
                ),
                (
                    "attempts",
                    models.IntegerField(
                        db_default=0, default=0, help_text="Attempts since it was created or redelivered."
                    ),
                ),
                (
                    "fence",
                    models.IntegerField(
                        db_default=0,
                        default=0,
                        help_text="Increases with every claim: only the latest claim may record a result.",
                    ),
                ),
                ("next_attempt_at", models.DateTimeField(db_default=Now())),
                ("response_status", models.SmallIntegerField(null=True)),
                ("duration_ms", models.IntegerField(null=True)),
                ("error", models.CharField(blank=True, db_default="", default="", max_length=500)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("ended_at", models.DateTimeField(null=True)),
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
                    "endpoint",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="deliveries",
                        to="tenants.webhookendpoint",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "webhook deliveries",
                "indexes": [
                    models.Index(
                        condition=models.Q(("state__in", ["pending", "sending"])),
                        fields=["endpoint", "next_attempt_at", "id"],
                        name="webhook_deliveries_due",
                    ),
                    models.Index(
                        condition=models.Q(("state", "sending")),
                        fields=["tenant", "endpoint"],
                        name="webhook_deliveries_under_way",
                    ),
                    models.Index(fields=["endpoint", "-created_at", "-id"], name="webhook_deliveries_newest"),
                    models.Index(fields=["created_at"], name="webhook_deliveries_by_age"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("endpoint", "event_number"), name="event_once_per_webhook"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Event",
            fields=[
                (
                    "id",
                    models.BigIntegerField(
                        help_text="In the order of numbering. Readers only see the number.",
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("number", models.BigIntegerField()),
                ("kind", models.CharField(max_length=32)),
                ("at", models.DateTimeField()),
                ("activity_id", models.UUIDField(null=True)),
                ("pipeline_run_id", models.UUIDField(null=True)),
                (
                    "data",
                    models.JSONField(
                        default=dict,
                        help_text="Ids and statuses. It never contains texts of agents or people.",
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
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "number"), name="event_numbered_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="FreshEvent",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "kind",
                    models.CharField(
                        help_text="If empty, the histories determine the kinds.", max_length=32, null=True
                    ),
                ),
                ("at", models.DateTimeField(null=True)),
                ("activity_id", models.UUIDField(null=True)),
                ("pipeline_run_id", models.UUIDField(null=True)),
                ("data", models.JSONField(null=True)),
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
                    "activities",
                    ArrayField(
                        base_field=models.UUIDField(),
                        help_text="The activities that have new entries in their histories.",
                        null=True,
                        size=None,
                    ),
                ),
                (
                    "seqs",
                    ArrayField(
                        base_field=models.IntegerField(),
                        help_text="The first new position in each of these histories, then the last in each.",
                        null=True,
                        size=None,
                    ),
                ),
            ],
            options={
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="AuditEntry",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("chain", models.UUIDField(help_text="The tenant's id; zeros for the platform.")),
                ("number", models.BigIntegerField()),
                ("at", models.DateTimeField()),
                (
                    "actor_kind",
                    models.CharField(help_text="user, token, run, command or nobody", max_length=16),
                ),
                ("actor_id", models.CharField(blank=True, max_length=100)),
                ("actor_name", models.CharField(blank=True, max_length=200)),
                ("operation", models.CharField(max_length=200)),
                (
                    "outcome",
                    models.CharField(default="done", help_text="done, refused or failed", max_length=16),
                ),
                ("object_kind", models.CharField(blank=True, max_length=100)),
                ("object_id", models.CharField(blank=True, max_length=200)),
                (
                    "changes",
                    models.JSONField(
                        default=dict,
                        help_text="The values before and after, by field, without secrets and texts.",
                    ),
                ),
                ("detail", models.JSONField(default=dict)),
                ("request_id", models.CharField(blank=True, max_length=64)),
                ("ip", models.CharField(blank=True, max_length=45)),
                ("break_glass_id", models.UUIDField(null=True)),
                ("previous_hash", models.CharField(max_length=64)),
                ("hash", models.CharField(max_length=64)),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=models.DO_NOTHING,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "audit entries",
                "indexes": [models.Index(fields=["tenant", "object_id"], name="audit_of_object")],
                "constraints": [
                    models.UniqueConstraint(fields=("chain", "number"), name="audit_number_once_per_chain")
                ],
            },
        ),
        migrations.CreateModel(
            name="ForgottenOutput",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        help_text="The id of the output, which is also the document's `_id`.",
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("activity_id", models.UUIDField()),
                ("at", models.DateTimeField(db_default=Now())),
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
                "indexes": [models.Index(fields=["tenant", "at"], name="forgotten_outputs")],
            },
        ),
        migrations.CreateModel(
            name="RetentionPolicy",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("kind", models.CharField(max_length=32)),
                (
                    "days",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="If empty, rows of this kind are never deleted.",
                        null=True,
                        validators=[MinValueValidator(1), MaxValueValidator(36500)],
                    ),
                ),
                (
                    "version",
                    models.IntegerField(default=1, editable=False, help_text="Increases with every change."),
                ),
                ("updated_by", models.CharField(blank=True, default="", editable=False, max_length=200)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "retention policies",
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "kind"), name="one_policy_per_kind")
                ],
            },
        ),
        migrations.CreateModel(
            name="RetentionTally",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("kind", models.CharField(max_length=32)),
                ("deleted", models.BigIntegerField(default=0)),
                (
                    "last_deleted",
                    models.IntegerField(
                        default=0, help_text="Number of rows deleted in the last pass that deleted any."
                    ),
                ),
                ("last_at", models.DateTimeField(db_default=Now())),
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
                "verbose_name": "deleted rows",
                "verbose_name_plural": "deleted rows",
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "kind"), name="one_tally_per_kind")
                ],
            },
        ),
        migrations.CreateModel(
            name="UsageTotal",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("month", models.DateField(help_text="The first day of the month.")),
                ("agent_role", models.CharField(max_length=63)),
                ("deliverable_id", models.UUIDField(null=True)),
                ("model", models.CharField(blank=True, default="", max_length=200)),
                ("input_tokens", models.BigIntegerField(default=0)),
                ("output_tokens", models.BigIntegerField(default=0)),
                ("dollars", models.DecimalField(decimal_places=12, default=0, max_digits=36)),
                ("runs", models.BigIntegerField(default=0)),
                ("entries", models.BigIntegerField(default=0)),
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
                "constraints": [
                    models.UniqueConstraint(
                        fields=("tenant", "month", "agent_role", "deliverable_id", "model"),
                        name="one_total_per_group",
                        nulls_distinct=False,
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="SavedView",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("page", models.CharField(help_text="The name of the page's URL.", max_length=32)),
                ("name", models.CharField(max_length=60)),
                ("query", models.CharField(blank=True, help_text="The query string.", max_length=1000)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "membership",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=models.DO_NOTHING,
                        related_name="+",
                        to="tenants.membership",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("tenant", "membership", "page", "name"),
                        name="saved_view_named_once",
                        nulls_distinct=False,
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Pause",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("pipeline", "Pipeline"),
                            ("provider", "Provider"),
                            ("schedule", "Schedule"),
                        ],
                        max_length=8,
                    ),
                ),
                (
                    "subject",
                    models.CharField(
                        help_text="The id of a pipeline or a schedule, or the name of a provider.",
                        max_length=63,
                    ),
                ),
                ("name", models.CharField(help_text="The name that people see.", max_length=200)),
                ("paused_by", models.CharField(max_length=200)),
                ("paused_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "kind", "subject"), name="paused_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="ConfigurationChange",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("transaction", models.BigIntegerField(help_text="The id of the transaction in PostgreSQL.")),
                (
                    "concerns",
                    models.UUIDField(
                        help_text="The tenant whose configuration has changed. Empty for all tenants.",
                        null=True,
                    ),
                ),
                ("noted_at", models.DateTimeField(db_default=Now())),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("transaction", "concerns"),
                        name="configuration_change_once",
                        nulls_distinct=False,
                    )
                ],
            },
        ),
    ]
