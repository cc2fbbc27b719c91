"""Row-level security, and keys with the tenant."""

from django.db import migrations

from tenants.row_security import IsolateTenant, TenantKey

TABLES = (
    "pipeline",
    "pipelineversion",
    "pipelinerun",
    "steprun",
    "activitytemplate",
    "deliverable",
    "deliverableperiod",
    "schedule",
    "firing",
    "scheduleexecution",
    "schedulejob",
    "dataset",
    "datasetrow",
)
RUN, PERIOD, SCHEDULE = "pipelines_pipelinerun", "pipelines_deliverableperiod", "pipelines_schedule"
EXECUTION = "pipelines_scheduleexecution"


class Migration(migrations.Migration):
    dependencies = [("pipelines", "0001_tables"), ("activities", "0002_isolation")]

    operations = [
        *[IsolateTenant(f"pipelines_{name}") for name in TABLES],
        TenantKey("pipelines_pipelineversion", "pipeline_id", "pipelines_pipeline"),
        TenantKey(RUN, "version_id", "pipelines_pipelineversion", on_delete="NO ACTION"),
        TenantKey(RUN, "period_id", PERIOD, on_delete="NO ACTION"),
        TenantKey(RUN, "replay_of", RUN, on_delete="SET NULL (replay_of)"),
        TenantKey("pipelines_steprun", "run_id", RUN),
        # The activity's model knows nothing of pipelines; its table does.
        TenantKey("activities_activity", "pipeline_run_id", RUN),
        TenantKey(PERIOD, "deliverable_id", "pipelines_deliverable", on_delete="NO ACTION"),
        TenantKey(SCHEDULE, "pipeline_id", "pipelines_pipeline", on_delete="NO ACTION"),
        TenantKey("pipelines_firing", "schedule_id", SCHEDULE),
        TenantKey(EXECUTION, "schedule_id", SCHEDULE, on_delete="SET NULL (schedule_id)"),
        TenantKey("pipelines_schedulejob", "execution_id", EXECUTION),
        TenantKey("pipelines_datasetrow", "dataset_id", "pipelines_dataset"),
    ]
