"""Sessions that end and stay as history; what agents are told they are; skills."""

import django.contrib.postgres.fields
import django.core.validators
import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

import tenants.identifiers
from tenants.row_security import IsolateTenant

SESSIONS = [
    migrations.AddField(
        model_name="agentsession",
        name="briefing",
        field=models.CharField(
            blank=True,
            db_default="",
            default="",
            help_text="A digest of what the agent was told about its work. Empty if not known.",
            max_length=64,
        ),
    ),
    migrations.AddField(
        model_name="agentsession",
        name="ended_at",
        field=models.DateTimeField(blank=True, editable=False, null=True),
    ),
    migrations.AddField(
        model_name="agentsession",
        name="end_reason",
        field=models.CharField(
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
    migrations.AlterField(
        model_name="agentsession",
        name="external_session_id",
        field=models.CharField(help_text="The agent's own id of the session.", max_length=200),
    ),
    migrations.RemoveConstraint(model_name="agentsession", name="session_once_per_deliverable"),
    migrations.AddConstraint(
        model_name="agentsession",
        constraint=models.UniqueConstraint(
            condition=models.Q(("ended_at__isnull", True)),
            fields=("tenant", "deliverable_id", "agent"),
            name="one_live_session",
        ),
    ),
    migrations.AddConstraint(
        model_name="agentsession",
        constraint=models.CheckConstraint(
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
    ),
    migrations.AddIndex(
        model_name="agentsession",
        index=models.Index(fields=["tenant", "deliverable_id", "-id"], name="sessions_of_deliverable"),
    ),
]

INSTRUCTIONS = [
    migrations.AddField(
        model_name="agent",
        name="instructions",
        field=models.TextField(
            blank=True,
            db_default="",
            default="",
            help_text="What the agent is and how it works; sent with every task. A change starts new sessions.",
        ),
    ),
    migrations.AddField(
        model_name="agentconfig",
        name="instructions",
        field=models.TextField(
            blank=True,
            db_default="",
            default="",
            help_text="Replaces the registry's instructions. A change starts new sessions.",
        ),
    ),
]

SKILLS = [
    migrations.CreateModel(
        name="Skill",
        fields=[
            (
                "id",
                models.UUIDField(
                    default=tenants.identifiers.uuid7, editable=False, primary_key=True, serialize=False
                ),
            ),
            (
                "key",
                models.CharField(
                    max_length=63,
                    validators=[
                        django.core.validators.RegexValidator(
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
                    validators=[django.core.validators.MaxLengthValidator(1000)],
                ),
            ),
            (
                "content",
                models.TextField(
                    help_text="Markdown.", validators=[django.core.validators.MaxLengthValidator(100000)]
                ),
            ),
            (
                "kind",
                models.CharField(
                    choices=[("context", "Context"), ("skill", "Skill")], default="skill", max_length=8
                ),
            ),
            (
                "roles",
                django.contrib.postgres.fields.ArrayField(
                    base_field=models.CharField(max_length=63),
                    blank=True,
                    default=list,
                    help_text="Of agents. Empty: for all.",
                    size=None,
                ),
            ),
            ("enabled", models.BooleanField(default=True)),
            ("version", models.PositiveIntegerField(default=1, editable=False)),
            (
                "created_at",
                models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
            ),
            (
                "updated_at",
                models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
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
            "ordering": ("key",),
            "constraints": [models.UniqueConstraint(fields=("tenant", "key"), name="skill_key_once")],
        },
    ),
    IsolateTenant("agents_skill"),
]


class Migration(migrations.Migration):
    dependencies = [("agents", "0003_seed_roles"), ("tenants", "0004_requests")]

    operations = [*SESSIONS, *INSTRUCTIONS, *SKILLS]
