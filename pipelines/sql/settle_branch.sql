-- Locks the run, then settles one branch of a step. The last branch settles the step: done if all branches are done, else failed.
-- Parameters  tenant, run, step, branch, state, output
-- Returns     the run after the change, with `state` of the step, if this has settled the step; nothing if other branches are active, or
--             if the branch had settled before.
-- Plan        rows are found by parameters, not by joins: a plan made while the tables were small stays good.
-- Guarantee   of two branches that settle at once one is the last: the run's lock puts them in order, and the update of the count
--             reads the result of the other.
WITH locked AS (
    SELECT id FROM pipelines_pipelinerun WHERE tenant_id = %(tenant)s AND id = %(run)s FOR UPDATE
), branch AS (
    UPDATE pipelines_steprun s SET status = %(state)s, settled_at = clock_timestamp(), output_ref = %(output)s
    FROM locked
    WHERE s.run_id = %(run)s AND s.step = %(step)s AND s.branch = %(branch)s AND s.status = 'active'
    RETURNING s.id
), step AS (
    UPDATE pipelines_steprun s
    SET unsettled_branches = s.unsettled_branches - 1,
        failed_branches = s.failed_branches + (%(state)s = 'failed')::int,
        status = CASE WHEN s.unsettled_branches > 1 THEN s.status
                      WHEN s.failed_branches > 0 OR %(state)s = 'failed' THEN 'failed' ELSE 'done' END,
        settled_at = CASE WHEN s.unsettled_branches > 1 THEN NULL ELSE clock_timestamp() END
    FROM branch
    WHERE s.run_id = %(run)s AND s.step = %(step)s AND s.branch = 0
    RETURNING s.status, s.unsettled_branches
)
UPDATE pipelines_pipelinerun r SET unsettled = r.unsettled - 1
FROM locked WHERE r.tenant_id = %(tenant)s AND r.id = %(run)s AND EXISTS (SELECT FROM step WHERE unsettled_branches = 0)
RETURNING r.*, (SELECT status FROM step) AS state
