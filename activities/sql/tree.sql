-- Finds the tree of subtasks of an activity: its root, the depth of the activity, and the number of activities in the tree.
-- Parameters  tenant, activity, most: where counting stops
-- Returns     one row: root, depth (0 for the root), members, subtasks (of the activity itself)
-- A successor has the same depth as its predecessor, and counts as a separate member.
WITH RECURSIVE ancestors AS (
    SELECT id, parent_id, link_kind, 0 AS depth, 0 AS steps FROM activities_activity WHERE tenant_id = %(tenant)s AND id = %(activity)s
    UNION ALL
    SELECT p.id, p.parent_id, p.link_kind, ancestors.depth + CASE WHEN ancestors.link_kind = 'subtask' THEN 1 ELSE 0 END, ancestors.steps + 1
    FROM ancestors JOIN activities_activity p ON p.tenant_id = %(tenant)s AND p.id = ancestors.parent_id
    WHERE ancestors.link_kind IN ('subtask', 'revision_of', 'reassigned_from') AND ancestors.steps < %(most)s
), root AS (
    SELECT id, depth FROM ancestors ORDER BY steps DESC LIMIT 1
), descendants AS (
    SELECT id FROM root
    UNION ALL
    SELECT c.id FROM descendants JOIN activities_activity c ON c.tenant_id = %(tenant)s AND c.parent_id = descendants.id
    WHERE c.link_kind IN ('subtask', 'revision_of', 'reassigned_from')
)
SELECT (SELECT id FROM root) AS root, (SELECT depth FROM root) AS depth,
       (SELECT count(*) FROM (SELECT FROM descendants LIMIT %(most)s) counted)::int AS members,
       (SELECT count(*)::int FROM activities_activity WHERE tenant_id = %(tenant)s AND parent_id = %(activity)s AND link_kind = 'subtask')
           AS subtasks
