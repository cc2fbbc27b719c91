-- Finds what must end with an activity: the questions and subtasks that were requested for it and their successors, at any depth, and the
-- approvals that the activity or any of these waits for.
-- Parameters  tenant, activity, kinds: links of questions and subtasks; successors: links of successors
-- Returns     id, status, is_approval; distinct
-- The successor of the activity itself does not end with it.
WITH RECURSIVE descendants AS (
    SELECT id, status FROM activities_activity
    WHERE tenant_id = %(tenant)s AND parent_id = %(activity)s AND link_kind = ANY(%(kinds)s)
    UNION
    SELECT c.id, c.status FROM descendants
    JOIN activities_activity c ON c.tenant_id = %(tenant)s AND c.parent_id = descendants.id
    WHERE c.link_kind = ANY(%(kinds)s) OR c.link_kind = ANY(%(successors)s)
)
SELECT id, status, false AS is_approval FROM descendants
UNION ALL
SELECT DISTINCT l.approval_id, NULL, true FROM approval_linked_activities l
WHERE l.tenant_id = %(tenant)s AND l.state = 'waiting' AND (l.activity_id = %(activity)s OR l.activity_id IN (SELECT id FROM descendants))
