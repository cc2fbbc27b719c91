"""The tables of agents: the registry, tenants' settings, sessions, skills and deployed versions."""

from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxLengthValidator, MinValueValidator, RegexValidator
from django.db import migrations, models
from django.db.models.functions import Now

from agents import semantic_versions
from tenants.identifiers import uuid7


class Migration(migrations.Migration):
    initial = True
    replaces = [("agents", "0014_names_of_records")]  # the last of those that it stands for
    dependencies = [
        ("tenants", "0002_tables"),
    ]

    operations = [
        migrations.CreateModel(
            name="Agent",
            fields=[
                (
                    "role",
                    models.CharField(
                        max_length=63,
                        primary_key=True,
                        serialize=False,
                        validators=[
                            RegexValidator(
                                "^[a-z0-9]+(-[a-z0-9]+)*$",
                                "Use lower-case letters, digits and single hyphens, such as blog-writer.",
                            )
                        ],
                    ),
                ),
                ("name", models.CharField(max_length=100)),
                ("description", models.TextField(blank=True)),
                (
                    "adapter",
                    models.CharField(
                        choices=[
                            ("http", "HTTP"),
                            ("inline", "Inline"),
                            ("anthropic", "Anthropic"),
                            ("openai", "OpenAI"),
                            ("cli", "CLI"),
                            ("batch", "Batch"),
                            ("a2a", "A2A"),
                        ],
                        default="http",
                        max_length=16,
                    ),
                ),
                (
                    "endpoint",
                    models.CharField(
                        blank=True,
                        help_text="A URL for http and a2a, or the dotted path of a callable for inline.",
                        max_length=500,
                    ),
                ),
                ("auth_sealed", models.TextField(blank=True, editable=False)),
                ("model", models.CharField(blank=True, max_length=100)),
                ("options", models.JSONField(blank=True, default=dict)),
                (
                    "input_schema",
                    models.JSONField(
                        blank=True, help_text="JSON Schema that params must satisfy.", null=True
                    ),
                ),
                (
                    "tenant_concurrency",
                    models.PositiveIntegerField(
                        default=5,
                        help_text="How many activities of each tenant may run at once.",
                        validators=[MinValueValidator(1)],
                    ),
                ),
                (
                    "max_concurrency",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="How many activities of all tenants together may run at once. Empty: no limit.",
                        null=True,
                    ),
                ),
                (
                    "timeout_seconds",
                    models.PositiveIntegerField(
                        blank=True, help_text="The timeout of an attempt. Empty: 660.", null=True
                    ),
                ),
                (
                    "retry",
                    models.JSONField(
                        blank=True,
                        default=dict,
                        help_text="max_attempts, strategy, base_seconds, multiplier, max_seconds, jitter",
                    ),
                ),
                ("enabled", models.BooleanField(default=True)),
                (
                    "paused",
                    models.BooleanField(
                        default=False,
                        help_text="No new work of this role starts for any tenant; current runs end normally.",
                    ),
                ),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "instructions",
                    models.TextField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="What the agent is and how it works; sent with every task. A change starts new sessions.",
                    ),
                ),
                (
                    "health",
                    models.CharField(
                        choices=[("unknown", "Unknown"), ("healthy", "Healthy"), ("unhealthy", "Unhealthy")],
                        db_default="unknown",
                        default="unknown",
                        editable=False,
                        max_length=9,
                    ),
                ),
                ("health_checked_at", models.DateTimeField(editable=False, null=True)),
                (
                    "health_detail",
                    models.CharField(blank=True, db_default="", default="", editable=False, max_length=500),
                ),
                (
                    "health_due_at",
                    models.DateTimeField(
                        editable=False, help_text="When it is checked next. Empty: now.", null=True
                    ),
                ),
                (
                    "health_failures",
                    models.PositiveIntegerField(
                        db_default=0, default=0, editable=False, help_text="Number of failed checks in a row."
                    ),
                ),
                (
                    "health_url",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="Requested with GET; a 2xx answer means healthy. If empty, any HTTP answer of the endpoint means healthy.",
                        max_length=500,
                    ),
                ),
                (
                    "revision",
                    models.PositiveIntegerField(
                        db_default=1,
                        default=1,
                        editable=False,
                        help_text="Increases with every change; the ETag begins with it.",
                    ),
                ),
                (
                    "backlog",
                    models.JSONField(
                        blank=True,
                        db_default={},
                        default=dict,
                        help_text="max_waiting for each tenant, when_full (reject, drop_oldest or evict_lowest), expire_after_seconds",
                    ),
                ),
            ],
            options={
                "ordering": ("role",),
            },
        ),
        migrations.CreateModel(
            name="AgentConfig",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "max_concurrency",
                    models.PositiveIntegerField(blank=True, null=True, validators=[MinValueValidator(1)]),
                ),
                (
                    "max_concurrency_per_group",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="How many activities with one group key may run at once. Empty: 1.",
                        null=True,
                        validators=[MinValueValidator(1)],
                    ),
                ),
                (
                    "adapter",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("http", "HTTP"),
                            ("inline", "Inline"),
                            ("anthropic", "Anthropic"),
                            ("openai", "OpenAI"),
                            ("cli", "CLI"),
                            ("batch", "Batch"),
                            ("a2a", "A2A"),
                        ],
                        max_length=16,
                    ),
                ),
                ("endpoint", models.CharField(blank=True, max_length=500)),
                ("auth_sealed", models.TextField(blank=True, editable=False)),
                ("model", models.CharField(blank=True, max_length=100)),
                ("timeout_seconds", models.PositiveIntegerField(blank=True, null=True)),
                ("retry", models.JSONField(blank=True, default=dict)),
                (
                    "rate",
                    models.JSONField(blank=True, default=dict, help_text="capacity and per_second of starts"),
                ),
                ("enabled", models.BooleanField(default=True)),
                ("paused", models.BooleanField(default=False)),
                ("version", models.PositiveIntegerField(default=1, editable=False)),
                (
                    "agent",
                    models.ForeignKey(
                        db_column="role",
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="+",
                        to="agents.agent",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
                (
                    "instructions",
                    models.TextField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="Replaces the registry's instructions. A change starts new sessions.",
                    ),
                ),
                (
                    "backlog",
                    models.JSONField(
                        blank=True,
                        db_default={},
                        default=dict,
                        help_text="max_waiting, when_full (reject, drop_oldest or evict_lowest), expire_after_seconds",
                    ),
                ),
                (
                    "signing_sealed",
                    models.TextField(
                        blank=True,
                        db_default="",
                        default="",
                        editable=False,
                        help_text="The encrypted signing secrets, newest first. Empty: secrets that are derived from the installation's keys.",
                    ),
                ),
                (
                    "hears_of_failures",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="Whether permanent failures of other roles wake this role, so that it can plan again (job.failed).",
                    ),
                ),
                (
                    "may_hold",
                    models.JSONField(
                        blank=True,
                        db_default={},
                        default=dict,
                        help_text="The waiting work, in addition to its own, that its questions to people may hold: everything (true), or lists of pipelines, deliverables, roles or groups.",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "agent"), name="agent_config_once_per_tenant")
                ],
            },
        ),
        migrations.CreateModel(
            name="AgentSession",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("deliverable_id", models.UUIDField()),
                (
                    "external_session_id",
                    models.CharField(help_text="The agent's own id of the session.", max_length=200),
                ),
                ("state", models.JSONField(blank=True, default=dict)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("updated_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "agent",
                    models.ForeignKey(
                        db_column="role", on_delete=models.CASCADE, related_name="+", to="agents.agent"
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
                (
                    "briefing",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="A digest of what the agent was told about its work. Empty if not known.",
                        max_length=64,
                    ),
                ),
                ("ended_at", models.DateTimeField(blank=True, editable=False, null=True)),
                (
                    "end_reason",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("instructions_changed", "Instructions Changed"),
                            ("invalid", "Invalid"),
                            ("replaced", "Replaced"),
                        ],
                        db_default="",
                        default="",
                        max_length=24,
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["tenant", "deliverable_id", "-id"], name="sessions_of_deliverable")
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("ended_at__isnull", True)),
                        fields=("tenant", "deliverable_id", "agent"),
                        name="one_live_session",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("end_reason", ""), ("ended_at__isnull", True)),
                            models.Q(
                                ("end_reason__in", ["instructions_changed", "invalid", "replaced"]),
                                ("ended_at__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="session_ends_for_a_reason",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="AgentVersionDeployment",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                ("version", models.CharField(max_length=64, validators=[semantic_versions.validate])),
                (
                    "environment",
                    models.CharField(
                        choices=[
                            ("production", "Production"),
                            ("staging", "Staging"),
                            ("development", "Development"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "endpoint",
                    models.CharField(
                        blank=True, help_text="If empty, the agent's own endpoint is used.", max_length=500
                    ),
                ),
                ("deployed_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("deployed_by", models.CharField(blank=True, max_length=200)),
                (
                    "agent",
                    models.ForeignKey(
                        on_delete=models.CASCADE, related_name="deployments", to="agents.agent"
                    ),
                ),
                (
                    "previous",
                    models.ForeignKey(
                        blank=True,
                        editable=False,
                        help_text="The deployment that was in production before; a rollback restores it.",
                        null=True,
                        on_delete=models.SET_NULL,
                        related_name="+",
                        to="agents.agentversiondeployment",
                    ),
                ),
                (
                    "promoted_from",
                    models.ForeignKey(
                        blank=True,
                        editable=False,
                        null=True,
                        on_delete=models.SET_NULL,
                        related_name="+",
                        to="agents.agentversiondeployment",
                    ),
                ),
                ("replaced_at", models.DateTimeField(blank=True, editable=False, null=True)),
                (
                    "replaced_by",
                    models.CharField(blank=True, db_default="", default="", editable=False, max_length=200),
                ),
            ],
            options={
                "ordering": ("agent", "-deployed_at", "-id"),
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("environment", "production"), ("replaced_at__isnull", True)),
                        fields=("agent",),
                        name="one_version_in_production",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("replaced_at__isnull", True)),
                        fields=("agent", "version", "environment"),
                        name="version_once_per_environment",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Skill",
            fields=[
                ("id", models.UUIDField(default=uuid7, editable=False, primary_key=True, serialize=False)),
                (
                    "key",
                    models.CharField(
                        max_length=63,
                        validators=[
                            RegexValidator(
                                "^[a-z0-9]+(-[a-z0-9]+)*\\Z",
                                "Use lower-case letters, digits and single hyphens, such as tone-of-voice.",
                            )
                        ],
                    ),
                ),
                ("name", models.CharField(max_length=100)),
                (
                    "description",
                    models.TextField(
                        blank=True,
                        help_text="When to read the skill. Agents decide by this text.",
                        validators=[MaxLengthValidator(1000)],
                    ),
                ),
                ("content", models.TextField(help_text="Markdown.", validators=[MaxLengthValidator(100000)])),
                (
                    "kind",
                    models.CharField(
                        choices=[("context", "Context"), ("skill", "Skill")], default="skill", max_length=8
                    ),
                ),
                (
                    "roles",
                    ArrayField(
                        base_field=models.CharField(max_length=63),
                        blank=True,
                        default=list,
                        help_text="Of agents. Empty: for all.",
                        size=None,
                    ),
                ),
                ("enabled", models.BooleanField(default=True)),
                ("version", models.PositiveIntegerField(default=1, editable=False)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("updated_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False, on_delete=models.CASCADE, related_name="+", to="tenants.tenant"
                    ),
                ),
            ],
            options={
                "ordering": ("key",),
                "constraints": [models.UniqueConstraint(fields=("tenant", "key"), name="skill_key_once")],
            },
        ),
        migrations.CreateModel(
            name="PlatformConfig",
            fields=[
                ("key", models.CharField(max_length=63, primary_key=True, serialize=False)),
                ("value", models.JSONField(blank=True, default=dict)),
                (
                    "version",
                    models.PositiveIntegerField(
                        default=1,
                        editable=False,
                        help_text="Increases with every change; the ETag begins with it.",
                    ),
                ),
                ("updated_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("updated_by", models.CharField(blank=True, default="", editable=False, max_length=200)),
            ],
            options={
                "verbose_name": "scheduling settings",
                "verbose_name_plural": "scheduling settings",
                "ordering": ("key",),
            },
        ),
    ]
