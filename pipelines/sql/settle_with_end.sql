-- Locks the run of an activity that ends well, then notes that its step has settled: the end of the statement that ends the activity
-- (`transitions.Following`), which leaves the activity in `moved`. As `settle_step.sql`, for a step that is not branched.
-- Parameters  tenant, run: that of the activity, whose output is the step's
-- Returns     settled: the run as it is now, with `settled`: 1, or 0 when the step was not active; nothing for an activity that is none of a
--             step's own, or that goes on.
-- Plan        rows are found by values of their own, not by joins: a plan made while the tables were small stays good.
-- Guarantee   the activity is locked before its run.
locked AS (
    SELECT id FROM pipelines_pipelinerun
    WHERE tenant_id = %(tenant)s
      AND id = (SELECT pipeline_run_id FROM moved WHERE NOT again AND step IS NOT NULL AND branch = 0 AND link_kind IS NULL)
    FOR UPDATE
), step AS (
    UPDATE pipelines_steprun s SET status = 'done', settled_at = clock_timestamp(), output_ref = %(run)s
    FROM locked
    WHERE s.run_id = (SELECT pipeline_run_id FROM moved) AND s.step = (SELECT step FROM moved) AND s.branch = 0 AND s.status = 'active'
    RETURNING s.id
), settled AS (
    UPDATE pipelines_pipelinerun r SET unsettled = r.unsettled - (SELECT count(*) FROM step)
    FROM locked WHERE r.tenant_id = %(tenant)s AND r.id = (SELECT pipeline_run_id FROM moved)
    RETURNING r.*, (SELECT count(*) FROM step) AS settled
)
