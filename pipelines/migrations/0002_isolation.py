from django.db import migrations

from tenants.row_security import IsolateTenant, TenantKey

TABLES = ["pipeline", "pipelineversion", "pipelinerun", "steprun", "activitytemplate"]


class Migration(migrations.Migration):
    dependencies = [("pipelines", "0001_initial"), ("activities", "0002_isolation")]

    operations = [
        *[IsolateTenant(f"pipelines_{name}") for name in TABLES],
        TenantKey("pipelines_pipelineversion", "pipeline_id", "pipelines_pipeline"),
        TenantKey("pipelines_pipelinerun", "version_id", "pipelines_pipelineversion", on_delete="NO ACTION"),
        TenantKey("pipelines_steprun", "run_id", "pipelines_pipelinerun"),
        # The activity's model knows nothing of pipelines; its table does.
        TenantKey("activities_activity", "pipeline_run_id", "pipelines_pipelinerun"),
    ]
