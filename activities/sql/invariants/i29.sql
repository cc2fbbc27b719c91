-- I29  A pipeline run's count of unsettled steps is true, and its status agrees with it.
-- Returns     id of each run for which that is not so
SELECT r.id FROM pipelines_pipelinerun r LEFT JOIN (
    SELECT run_id, count(*) FILTER (WHERE status IN ('pending', 'active')) AS unsettled FROM pipelines_steprun GROUP BY run_id
) s ON s.run_id = r.id
WHERE r.unsettled <> coalesce(s.unsettled, 0)
   OR r.status = 'running' AND r.unsettled = 0
   OR r.status IN ('completed', 'failed') AND r.unsettled <> 0
   OR (r.status = 'running') <> (r.finished_at IS NULL)
   OR r.failed <> (r.status = 'failed')
