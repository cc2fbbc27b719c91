-- Creates runs of one version, each with all of its steps. For any number.
-- Parameters  tenant, version, created_by, unsettled: how many steps there are,
--             runs, steps: JSON arrays, as text, of objects with the columns below
-- Returns     id, started_at of each run
WITH run AS (
    INSERT INTO pipelines_pipelinerun
        (id, tenant_id, version_id, status, params, input, deliverable_id, period_id, plan_item, name, schedule_id, priority, retry,
         timeout_seconds, unsettled, failed, created_by, requested_identity, replay_from, labels, not_before)
    SELECT id, %(tenant)s, %(version)s, 'running', params, input, deliverable_id, period_id, plan_item, name, schedule_id, priority, retry,
           timeout_seconds, %(unsettled)s, false, %(created_by)s, requested_identity, '', labels, not_before
    FROM jsonb_to_recordset(%(runs)s::jsonb) AS r(
        id uuid, params jsonb, input jsonb, deliverable_id uuid, period_id uuid, plan_item smallint, name text, schedule_id uuid,
        priority smallint, retry jsonb, timeout_seconds integer, requested_identity text, labels jsonb, not_before timestamptz)
    RETURNING id, started_at
), step AS (
    INSERT INTO pipelines_steprun (tenant_id, run_id, step, branch, position, status, reason, activity_id, round, waits_until)
    SELECT %(tenant)s, run_id, step, 0, position, status, reason, activity_id, 1, waits_until
    FROM jsonb_to_recordset(%(steps)s::jsonb) AS s(
        run_id uuid, step text, position integer, status text, reason text, activity_id uuid, waits_until timestamptz)
)
SELECT id, started_at FROM run
