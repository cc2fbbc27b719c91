-- Locks the runs of activities that end well, then notes that their steps have settled: the end of the statement that ends the activities
-- (`transitions.Following`), which leaves them in `moved`. As `settle_step.sql`, for steps that are not branched.
-- Parameters  tenant
-- Returns     settled: each run as it is now, with `settled`: how many of its steps were active, or 0 (this was noted before); nothing for an
--             activity that is none of a step's own, or that goes on.
-- Plan        rows are found by arrays of keys, not by joins alone: a plan made while the tables were small stays good.
-- Guarantee   activities are locked before runs, and these in the order of their ids.
ended AS MATERIALIZED (
    SELECT pipeline_run_id, step, run_id FROM moved WHERE NOT again AND step IS NOT NULL AND branch = 0 AND link_kind IS NULL
), locked AS MATERIALIZED (
    SELECT id FROM pipelines_pipelinerun
    WHERE tenant_id = %(tenant)s AND id = ANY(ARRAY(SELECT pipeline_run_id FROM ended))
    ORDER BY id FOR UPDATE
), step AS (
    UPDATE pipelines_steprun s SET status = 'done', settled_at = clock_timestamp(), output_ref = ended.run_id
    FROM ended JOIN locked ON locked.id = ended.pipeline_run_id
    WHERE s.run_id = ANY(ARRAY(SELECT id FROM locked)) AND s.step = ANY(ARRAY(SELECT step FROM ended)) AND s.branch = 0
      AND s.run_id = ended.pipeline_run_id AND s.step = ended.step AND s.status = 'active'
    RETURNING s.run_id
), counted AS MATERIALIZED (
    -- Of its own, since a statement that looks again at a row for which it has waited must not carry out `step` again.
    SELECT locked.id, count(step.run_id) AS steps FROM locked LEFT JOIN step ON step.run_id = locked.id GROUP BY locked.id
), settled AS (
    UPDATE pipelines_pipelinerun r SET unsettled = r.unsettled - counted.steps
    FROM counted WHERE r.tenant_id = %(tenant)s AND r.id = ANY(ARRAY(SELECT id FROM locked)) AND r.id = counted.id
    RETURNING r.*, counted.steps AS settled
)
