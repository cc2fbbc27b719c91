-- Work of a role that may be given up to make room: background, never started, and nobody waits for it.
-- Nobody waits for what is no part of anything (a parent, a pipeline run, a deliverable), what nothing is part of, what no
-- approval is about or will be, and what no person has submitted.
-- Parameters  tenant, role, background (the priority), count; {direction}: ASC from the oldest, DESC from the newest
-- Returns     id
-- Guarantee   what another transaction has locked is left out: it is being claimed or cancelled at this moment.
SELECT a.id FROM activities_activity a
WHERE a.tenant_id = %(tenant)s AND a.status = 'created' AND a.indexed_status = 'open' AND a.assignee_type = 'agent' AND a.agent_role = %(role)s
  AND a.priority >= %(background)s AND a.fence = 0 AND NOT a.requires_approval
  AND a.parent_id IS NULL AND a.pipeline_run_id IS NULL AND a.deliverable_id IS NULL
  AND NOT EXISTS (SELECT FROM activities_activity child WHERE child.parent_id = a.id)
  AND NOT EXISTS (SELECT FROM approval_linked_activities link WHERE link.activity_id = a.id)
  AND NOT EXISTS (SELECT FROM activities_activityevent e WHERE e.activity_id = a.id AND e.seq = 1 AND e.actor LIKE 'user:%%')
ORDER BY a.created_at {direction}, a.id {direction}
LIMIT %(count)s FOR UPDATE OF a SKIP LOCKED
