-- The state of each step of a run as its graph shall see it: one that is being decided, or has no room, has no step to wait for any more.
-- Parameters  run
-- Returns     step, state
SELECT step, CASE WHEN reason IN ('evaluating', 'backlog') THEN 'active' ELSE status END AS state
FROM pipelines_steprun WHERE run_id = %(run)s AND branch = 0
