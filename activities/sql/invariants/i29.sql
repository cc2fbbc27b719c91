-- I29  A pipeline run's counter and status agree with its steps.
-- So do the counters of a step with branches, which has settled exactly when all its branches have.
-- Returns     id of each run that violates this
SELECT r.id FROM pipelines_pipelinerun r LEFT JOIN (
    SELECT run_id, count(*) FILTER (WHERE status IN ('pending', 'active')) AS unsettled
    FROM pipelines_steprun WHERE branch = 0 GROUP BY run_id
) s ON s.run_id = r.id
WHERE r.unsettled <> coalesce(s.unsettled, 0)
   OR r.status = 'running' AND r.unsettled = 0
   OR r.status IN ('completed', 'failed') AND r.unsettled <> 0
   OR (r.status = 'running') <> (r.finished_at IS NULL)
   OR r.failed <> (r.status = 'failed')
UNION
SELECT coalesce(s.run_id, b.run_id) FROM (
    SELECT * FROM pipelines_steprun WHERE branch = 0 AND branches IS NOT NULL
) s FULL JOIN (
    SELECT run_id, step, count(*) AS branches, count(*) FILTER (WHERE status = 'active') AS unsettled,
           count(*) FILTER (WHERE status = 'failed') AS failed
    FROM pipelines_steprun WHERE branch > 0 GROUP BY run_id, step
) b ON b.run_id = s.run_id AND b.step = s.step
WHERE s.branches IS DISTINCT FROM coalesce(b.branches, 0)
   OR s.unsettled_branches <> coalesce(b.unsettled, 0) OR s.failed_branches <> coalesce(b.failed, 0)
   OR s.activity_id IS NOT NULL
   OR s.status <> CASE WHEN b.unsettled > 0 THEN 'active' WHEN b.failed > 0 THEN 'failed' ELSE 'done' END
