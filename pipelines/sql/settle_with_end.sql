-- Locks the runs of successful activities, then settles their steps, or branches of steps. It is the last part of the statement that ends the
-- activities (`transitions.Following`), which returns them in `moved`. Like `settle_step.sql` and `settle_branch.sql`, for any number.
-- Parameters  tenant
-- Returns     settled: for each activity of a step that does not continue, its run after the change, with `settled`: 1 if this has settled
--             the step, else 0 (other branches are active, or the step had settled before); and `state` of the step. Of several branches
--             that settle their step together, one has the 1.
-- Plan        rows are found by arrays of keys, not by joins alone: a plan made while the tables were small stays good.
-- Guarantee   activities are locked before runs, and these in the order of their ids. Of two branches that settle at once one is the last:
--             the run's lock puts them in order, and the update of the count reads the result of the other.
ended AS MATERIALIZED (
    SELECT id AS activity, pipeline_run_id, step, branch, run_id FROM moved WHERE NOT again AND step IS NOT NULL AND link_kind IS NULL
), locked AS MATERIALIZED (
    SELECT id FROM pipelines_pipelinerun
    WHERE tenant_id = %(tenant)s AND id = ANY(ARRAY(SELECT pipeline_run_id FROM ended))
    ORDER BY id FOR UPDATE
), step AS (
    UPDATE pipelines_steprun s SET status = 'done', settled_at = clock_timestamp(), output_ref = ended.run_id
    FROM ended JOIN locked ON locked.id = ended.pipeline_run_id
    WHERE s.run_id = ANY(ARRAY(SELECT id FROM locked)) AND s.step = ANY(ARRAY(SELECT step FROM ended))
      AND s.branch = ANY(ARRAY(SELECT branch FROM ended))
      AND s.run_id = ended.pipeline_run_id AND s.step = ended.step AND s.branch = ended.branch AND s.status = 'active'
    RETURNING s.run_id, s.step, s.branch
), branches AS MATERIALIZED (
    SELECT run_id, step, count(*) AS number FROM step WHERE branch > 0 GROUP BY run_id, step
), whole AS (
    UPDATE pipelines_steprun s
    SET unsettled_branches = s.unsettled_branches - branches.number,
        status = CASE WHEN s.unsettled_branches > branches.number THEN s.status WHEN s.failed_branches > 0 THEN 'failed' ELSE 'done' END,
        settled_at = CASE WHEN s.unsettled_branches > branches.number THEN NULL ELSE clock_timestamp() END
    FROM branches
    WHERE s.run_id = ANY(ARRAY(SELECT run_id FROM branches)) AND s.step = ANY(ARRAY(SELECT step FROM branches)) AND s.branch = 0
      AND s.run_id = branches.run_id AND s.step = branches.step
    RETURNING s.run_id, s.step, s.status, s.unsettled_branches
), now_settled AS MATERIALIZED (
    SELECT run_id, step, 'done' AS state FROM step WHERE branch = 0
    UNION ALL SELECT run_id, step, status FROM whole WHERE unsettled_branches = 0
), counted AS MATERIALIZED (
    -- A separate expression, because PostgreSQL would evaluate it again after waiting for a row.
    SELECT run_id, count(*) AS steps FROM now_settled GROUP BY run_id
), run_now AS (
    UPDATE pipelines_pipelinerun r SET unsettled = r.unsettled - counted.steps
    FROM counted WHERE r.tenant_id = %(tenant)s AND r.id = ANY(ARRAY(SELECT run_id FROM counted)) AND r.id = counted.run_id
    RETURNING r.*
), settled AS (
    SELECT ended.activity, run_now.*, now_settled.state,
           CASE WHEN now_settled.run_id IS NULL THEN 0
                WHEN row_number() OVER (PARTITION BY ended.pipeline_run_id, ended.step ORDER BY ended.activity) = 1 THEN 1 ELSE 0 END AS settled
    FROM ended
    LEFT JOIN now_settled ON now_settled.run_id = ended.pipeline_run_id AND now_settled.step = ended.step
    LEFT JOIN run_now ON run_now.id = ended.pipeline_run_id
)
