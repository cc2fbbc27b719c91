import django.db.models.deletion
from django.db import migrations, models

import agents.semantic_versions


class Migration(migrations.Migration):
    dependencies = [
        ("agents", "0005_platform_config"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="agentversiondeployment",
            options={"ordering": ("agent", "-deployed_at", "-id")},
        ),
        migrations.RemoveConstraint(
            model_name="agentversiondeployment",
            name="one_version_in_production",
        ),
        migrations.RemoveConstraint(
            model_name="agentversiondeployment",
            name="version_once_per_environment",
        ),
        migrations.AddField(
            model_name="agent",
            name="health",
            field=models.CharField(
                choices=[("unknown", "Unknown"), ("healthy", "Healthy"), ("unhealthy", "Unhealthy")],
                db_default="unknown",
                default="unknown",
                editable=False,
                max_length=9,
            ),
        ),
        migrations.AddField(
            model_name="agent",
            name="health_checked_at",
            field=models.DateTimeField(editable=False, null=True),
        ),
        migrations.AddField(
            model_name="agent",
            name="health_detail",
            field=models.CharField(blank=True, db_default="", default="", editable=False, max_length=500),
        ),
        migrations.AddField(
            model_name="agent",
            name="health_due_at",
            field=models.DateTimeField(
                editable=False, help_text="When it is checked next. Empty: now.", null=True
            ),
        ),
        migrations.AddField(
            model_name="agent",
            name="health_failures",
            field=models.PositiveIntegerField(
                db_default=0, default=0, editable=False, help_text="Number of failed checks in a row."
            ),
        ),
        migrations.AddField(
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
        migrations.AddField(
            model_name="agent",
            name="revision",
            field=models.PositiveIntegerField(
                db_default=1,
                default=1,
                editable=False,
                help_text="Increases with every change; the ETag begins with it.",
            ),
        ),
        migrations.AddField(
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
        migrations.AddField(
            model_name="agentversiondeployment",
            name="promoted_from",
            field=models.ForeignKey(
                blank=True,
                editable=False,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="agents.agentversiondeployment",
            ),
        ),
        migrations.AddField(
            model_name="agentversiondeployment",
            name="replaced_at",
            field=models.DateTimeField(blank=True, editable=False, null=True),
        ),
        migrations.AddField(
            model_name="agentversiondeployment",
            name="replaced_by",
            field=models.CharField(blank=True, db_default="", default="", editable=False, max_length=200),
        ),
        migrations.AlterField(
            model_name="agentversiondeployment",
            name="deployed_by",
            field=models.CharField(blank=True, max_length=200),
        ),
        migrations.AlterField(
            model_name="agentversiondeployment",
            name="version",
            field=models.CharField(max_length=64, validators=[agents.semantic_versions.validate]),
        ),
        migrations.AddConstraint(
            model_name="agentversiondeployment",
            constraint=models.UniqueConstraint(
                condition=models.Q(("environment", "production"), ("replaced_at__isnull", True)),
                fields=("agent",),
                name="one_version_in_production",
            ),
        ),
        migrations.AddConstraint(
            model_name="agentversiondeployment",
            constraint=models.UniqueConstraint(
                condition=models.Q(("replaced_at__isnull", True)),
                fields=("agent", "version", "environment"),
                name="version_once_per_environment",
            ),
        ),
    ]
