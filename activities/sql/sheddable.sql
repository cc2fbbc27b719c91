-- Selects work of a role that may be cancelled to make room: background work that has never started and that nothing depends on.
-- Nothing depends on work without a parent, pipeline run or deliverable, without children, without an approval now or later, without
-- messages for later that are more urgent (their lowest priority is 9), and which no person has submitted or lets run now.
-- Parameters  tenant, role, background (the priority), schedules (array of uuid: those whose work is spared), count;
--             {direction}: ASC from the oldest, DESC from the newest
-- Returns     id
-- Guarantee   rows locked by other transactions are skipped, because they are being claimed or cancelled.
SELECT a.id FROM activities_activity a
WHERE a.tenant_id = %(tenant)s AND a.status = 'created' AND a.indexed_status = 'open' AND a.assignee_type = 'agent' AND a.agent_role = %(role)s
  AND a.priority >= %(background)s AND a.fence = 0 AND NOT a.requires_approval AND a.run_now_at IS NULL
  AND a.parent_id IS NULL AND a.pipeline_run_id IS NULL AND a.deliverable_id IS NULL
  AND (a.schedule_id IS NULL OR a.schedule_id <> ALL(%(schedules)s::uuid[]))
  AND NOT EXISTS (SELECT FROM activities_activity child WHERE child.parent_id = a.id)
  AND NOT EXISTS (SELECT FROM approval_linked_activities link WHERE link.activity_id = a.id)
  AND NOT EXISTS (SELECT FROM activities_activityevent e WHERE e.activity_id = a.id AND e.seq = 1 AND e.actor LIKE 'user:%%')
  AND NOT EXISTS (SELECT FROM activities_mailboxitem i WHERE i.activity_id = a.id AND i.priority < 9)
ORDER BY a.created_at {direction}, a.id {direction}
LIMIT %(count)s FOR UPDATE OF a SKIP LOCKED
