-- I10  A pipeline goes on: no step of a running run waits for steps that have all settled, none is under way whose
--      activity has settled, and no step and branch has two activities at once.
-- Parameters  live: statuses of activities that count as existing;  settled: those with which the step has ended
-- Returns     id of each run for which that is not so
WITH open_run AS (
    SELECT id, version_id FROM pipelines_pipelinerun WHERE status = 'running'
), needed AS (
    SELECT v.id AS version_id, d.step ->> 'id' AS step, u.upstream
    FROM pipelines_pipelineversion v
    CROSS JOIN LATERAL jsonb_array_elements(v.definition -> 'steps') AS d(step)
    LEFT JOIN LATERAL jsonb_array_elements_text(d.step -> 'depends_on') AS u(upstream) ON true
    WHERE v.id IN (SELECT version_id FROM open_run)
)
SELECT s.run_id AS id
FROM open_run r
JOIN pipelines_steprun s ON s.run_id = r.id AND s.status = 'pending'
JOIN needed n ON n.version_id = r.version_id AND n.step = s.step
LEFT JOIN pipelines_steprun u ON u.run_id = r.id AND u.step = n.upstream AND u.status IN ('pending', 'active')
GROUP BY s.run_id, s.id HAVING count(u.id) = 0
UNION
SELECT s.run_id FROM open_run r
JOIN pipelines_steprun s ON s.run_id = r.id AND s.status = 'active'
LEFT JOIN activities_activity a ON a.id = s.activity_id
WHERE a.id IS NULL OR a.status = ANY(%(settled)s)
UNION
SELECT pipeline_run_id FROM activities_activity
WHERE pipeline_run_id IS NOT NULL AND status = ANY(%(live)s)
  AND (link_kind IS NULL OR link_kind IN ('revision_of', 'reassigned_from'))
GROUP BY pipeline_run_id, step, branch HAVING count(*) > 1
