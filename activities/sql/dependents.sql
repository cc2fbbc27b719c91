-- What ends with an activity: what people and agents were asked for its sake, what has taken the place of that, all the way down, and the
-- approvals that any of them, or the activity itself, waits for.
-- Parameters  tenant, activity, kinds: links of what was asked for its sake; successors: links of what takes the place of something
-- Returns     id, status, is_approval; none twice
-- What takes the activity's own place does not end with it: it goes on instead.
WITH RECURSIVE down AS (
    SELECT id, status FROM activities_activity
    WHERE tenant_id = %(tenant)s AND parent_id = %(activity)s AND link_kind = ANY(%(kinds)s)
    UNION
    SELECT c.id, c.status FROM down
    JOIN activities_activity c ON c.tenant_id = %(tenant)s AND c.parent_id = down.id
    WHERE c.link_kind = ANY(%(kinds)s) OR c.link_kind = ANY(%(successors)s)
)
SELECT id, status, false AS is_approval FROM down
UNION ALL
SELECT DISTINCT l.approval_id, NULL, true FROM approval_linked_activities l
WHERE l.tenant_id = %(tenant)s AND l.state = 'waiting' AND (l.activity_id = %(activity)s OR l.activity_id IN (SELECT id FROM down))
