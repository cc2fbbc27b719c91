import django.core.validators
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("agents", "0013_configuration_changes"),
    ]

    operations = [
        migrations.AlterField(
            model_name="agent",
            name="endpoint",
            field=models.CharField(
                blank=True,
                help_text="A URL for http and a2a, or the dotted path of a callable for inline.",
                max_length=500,
            ),
        ),
        migrations.AlterField(
            model_name="agent",
            name="health_due_at",
            field=models.DateTimeField(
                editable=False, help_text="When it is checked next. Empty: now.", null=True
            ),
        ),
        migrations.AlterField(
            model_name="agent",
            name="health_failures",
            field=models.PositiveIntegerField(
                db_default=0, default=0, editable=False, help_text="Number of failed checks in a row."
            ),
        ),
        migrations.AlterField(
            model_name="agent",
            name="health_url",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="Requested with GET; a 2xx answer means healthy. If empty, any HTTP answer of the endpoint means healthy.",
                max_length=500,
            ),
        ),
        migrations.AlterField(
            model_name="agent",
            name="instructions",
            field=models.TextField(
                blank=True,
                db_default="",
                default="",
                help_text="What the agent is and how it works; sent with every task. A change starts new sessions.",
            ),
        ),
        migrations.AlterField(
            model_name="agent",
            name="max_concurrency",
            field=models.PositiveIntegerField(
                blank=True,
                help_text="How many activities of all tenants together may run at once. Empty: no limit.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="agent",
            name="paused",
            field=models.BooleanField(
                default=False,
                help_text="No new work of this role starts for any tenant; current runs end normally.",
            ),
        ),
        migrations.AlterField(
            model_name="agent",
            name="revision",
            field=models.PositiveIntegerField(
                db_default=1,
                default=1,
                editable=False,
                help_text="Increases with every change; used as the ETag.",
            ),
        ),
        migrations.AlterField(
            model_name="agent",
            name="tenant_concurrency",
            field=models.PositiveIntegerField(
                default=5,
                help_text="How many activities of each tenant may run at once.",
                validators=[django.core.validators.MinValueValidator(1)],
            ),
        ),
        migrations.AlterField(
            model_name="agent",
            name="timeout_seconds",
            field=models.PositiveIntegerField(
                blank=True, help_text="The timeout of an attempt. Empty: 660.", null=True
            ),
        ),
        migrations.AlterField(
            model_name="agentconfig",
            name="hears_of_failures",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Whether permanent failures of other roles wake this role, so that it can plan again (job.failed).",
            ),
        ),
        migrations.AlterField(
            model_name="agentconfig",
            name="instructions",
            field=models.TextField(
                blank=True,
                db_default="",
                default="",
                help_text="Replaces the registry's instructions. A change starts new sessions.",
            ),
        ),
        migrations.AlterField(
            model_name="agentconfig",
            name="max_concurrency_per_group",
            field=models.PositiveIntegerField(
                blank=True,
                help_text="How many activities with one group key may run at once. Empty: 1.",
                null=True,
                validators=[django.core.validators.MinValueValidator(1)],
            ),
        ),
        migrations.AlterField(
            model_name="agentconfig",
            name="may_hold",
            field=models.JSONField(
                blank=True,
                db_default={},
                default=dict,
                help_text="The waiting work, in addition to its own, that its questions to people may hold: everything (true), or lists of pipelines, deliverables, roles or groups.",
            ),
        ),
        migrations.AlterField(
            model_name="agentconfig",
            name="signing_sealed",
            field=models.TextField(
                blank=True,
                db_default="",
                default="",
                editable=False,
                help_text="The encrypted signing secrets, newest first. Empty: secrets that are derived from the installation's keys.",
            ),
        ),
        migrations.AlterField(
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
        migrations.AlterField(
            model_name="agentsession",
            name="external_session_id",
            field=models.CharField(help_text="The agent's own id of the session.", max_length=200),
        ),
        migrations.AlterField(
            model_name="agentversiondeployment",
            name="endpoint",
            field=models.CharField(
                blank=True, help_text="If empty, the agent's own endpoint is used.", max_length=500
            ),
        ),
        migrations.AlterField(
            model_name="agentversiondeployment",
            name="previous",
            field=models.ForeignKey(
                blank=True,
                editable=False,
                help_text="The deployment that was in production before; a rollback restores it.",
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="agents.agentversiondeployment",
            ),
        ),
        migrations.AlterField(
            model_name="platformconfig",
            name="version",
            field=models.PositiveIntegerField(
                default=1, editable=False, help_text="Increases with every change; used as the ETag."
            ),
        ),
        migrations.AlterField(
            model_name="skill",
            name="description",
            field=models.TextField(
                blank=True,
                help_text="When to read the skill. Agents decide by this text.",
                validators=[django.core.validators.MaxLengthValidator(1000)],
            ),
        ),
    ]
