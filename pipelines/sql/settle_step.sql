-- Locks the run, then settles one of its steps.
-- Parameters  tenant, run, step, branch, state, output
-- Returns     the run after the change, with `settled`: 1, or 0 if the step was not active because it had settled before.
-- Plan        rows are found by parameters, not by joins: a plan made while the tables were small stays good.
-- Guarantee   steps of one run that settle at once do so one after the other. Statements after this one see the steps that settled before.
WITH locked AS (
    SELECT id FROM pipelines_pipelinerun WHERE tenant_id = %(tenant)s AND id = %(run)s FOR UPDATE
), step AS (
    UPDATE pipelines_steprun s SET status = %(state)s, settled_at = clock_timestamp(), output_ref = %(output)s
    FROM locked
    WHERE s.run_id = %(run)s AND s.step = %(step)s AND s.branch = %(branch)s AND s.status = 'active'
    RETURNING s.id
)
UPDATE pipelines_pipelinerun r SET unsettled = r.unsettled - (SELECT count(*) FROM step)
FROM locked WHERE r.tenant_id = %(tenant)s AND r.id = %(run)s
RETURNING r.*, (SELECT count(*) FROM step) AS settled
