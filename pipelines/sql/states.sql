-- Selects the state of each step of a run for the graph. A step whose condition is being evaluated, or that waits because the backlog of
-- its role is full, counts as active, because it no longer waits for other steps.
-- Parameters  run
-- Returns     step, state
SELECT step, CASE WHEN reason IN ('evaluating', 'backlog') THEN 'active' ELSE status END AS state
FROM pipelines_steprun WHERE run_id = %(run)s AND branch = 0
