-- Selects which of the requested activities belong to the work of an activity.
-- Parameters  tenant, activity; line: the activity and its predecessors; wanted: the requested activities, whose number is limited by the
--             caller; most: the maximum number of steps up a tree
-- Returns     id, is_part: whether it is in the line or a subtask of it, at any depth. The others belong to the same pipeline run or
--             deliverable.
WITH RECURSIVE ancestors AS (
    SELECT id AS wanted, id, parent_id, link_kind, 0 AS steps
    FROM activities_activity WHERE tenant_id = %(tenant)s AND id = ANY(%(wanted)s)
    UNION ALL
    SELECT ancestors.wanted, p.id, p.parent_id, p.link_kind, ancestors.steps + 1
    FROM ancestors JOIN activities_activity p ON p.tenant_id = %(tenant)s AND p.id = ancestors.parent_id
    WHERE NOT ancestors.id = ANY(%(line)s) AND ancestors.link_kind IN ('subtask', 'revision_of', 'reassigned_from') AND ancestors.steps < %(most)s
), part AS (
    SELECT DISTINCT wanted AS id FROM ancestors WHERE id = ANY(%(line)s)
)
SELECT id, true AS is_part FROM part
UNION ALL
SELECT w.id, false FROM activities_activity a
JOIN activities_activity w ON w.tenant_id = %(tenant)s AND w.id = ANY(%(wanted)s)
    AND (w.pipeline_run_id = a.pipeline_run_id OR w.deliverable_id = a.deliverable_id)
WHERE a.tenant_id = %(tenant)s AND a.id = %(activity)s AND w.id NOT IN (SELECT id FROM part)
