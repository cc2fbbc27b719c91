-- I10  Pipelines continue, and rejected or reassigned work has one successor.
-- In a running pipeline run, no pending step has only settled predecessors, and no active step has a settled activity. In any run, no step
-- and branch has two live activities. A reassigned activity has one successor. Rejected work of an agent has one revision or, after the
-- last round, one escalation, not counting those of earlier failures. Accepted work may have one revision, because a later gate can request
-- changes. Others have neither.
-- Parameters  live: statuses of activities that count as existing; settled: statuses with which the step has ended
-- Returns     id of each run or activity that violates this
-- A step whose condition is being evaluated is pending, but waits for no other step. A step with branches has no activity itself.
WITH open_run AS (
    SELECT id, version_id FROM pipelines_pipelinerun WHERE status = 'running'
), successor AS (
    SELECT parent_id,
           count(*) FILTER (WHERE link_kind = 'reassigned_from') AS heirs,
           count(*) FILTER (WHERE link_kind = 'revision_of') AS revisions,
           count(*) FILTER (WHERE link_kind = 'escalation' AND metadata -> 'dead_letter' IS NULL) AS escalations
    FROM activities_activity WHERE link_kind IN ('reassigned_from', 'revision_of', 'escalation') GROUP BY parent_id
), needed AS (
    SELECT v.id AS version_id, d.step ->> 'id' AS step, u.upstream
    FROM pipelines_pipelineversion v
    CROSS JOIN LATERAL jsonb_array_elements(v.definition -> 'steps') AS d(step)
    LEFT JOIN LATERAL jsonb_array_elements_text(d.step -> 'depends_on') AS u(upstream) ON true
    WHERE v.id IN (SELECT version_id FROM open_run)
)
SELECT s.run_id AS id
FROM open_run r
JOIN pipelines_steprun s ON s.run_id = r.id AND s.status = 'pending' AND s.reason <> 'evaluating'
JOIN needed n ON n.version_id = r.version_id AND n.step = s.step
LEFT JOIN pipelines_steprun u ON u.run_id = r.id AND u.step = n.upstream AND u.branch = 0 AND u.status IN ('pending', 'active')
GROUP BY s.run_id, s.id HAVING count(u.id) = 0
UNION
SELECT s.run_id FROM open_run r
JOIN pipelines_steprun s ON s.run_id = r.id AND s.status = 'active' AND s.branches IS NULL
LEFT JOIN activities_activity a ON a.id = s.activity_id
WHERE a.id IS NULL OR a.status = ANY(%(settled)s)
UNION
SELECT pipeline_run_id FROM activities_activity
WHERE pipeline_run_id IS NOT NULL AND step IS NOT NULL AND status = ANY(%(live)s)
  AND (link_kind IS NULL OR link_kind IN ('revision_of', 'reassigned_from'))
GROUP BY pipeline_run_id, step, branch HAVING count(*) > 1
UNION
SELECT a.id FROM activities_activity a LEFT JOIN successor s ON s.parent_id = a.id
WHERE a.status IN ('reassigned', 'rejected') AND CASE
    WHEN a.status = 'reassigned' THEN s.heirs IS DISTINCT FROM 1
    ELSE a.assignee_type = 'agent' AND s.revisions + s.escalations IS DISTINCT FROM 1 END
UNION
SELECT a.id FROM successor s JOIN activities_activity a ON a.id = s.parent_id
WHERE s.heirs > (a.status = 'reassigned')::int OR s.revisions > (a.status IN ('rejected', 'done', 'approved'))::int
