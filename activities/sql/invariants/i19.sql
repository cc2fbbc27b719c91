-- I19  Nothing that is due waits for long: work while a worker serves its role and nothing holds it back, what is to happen while
--      nobody decides, and failures that people are to be told of.
-- Parameters  patience: seconds that it may wait;  silence: seconds without a beat after which a worker is gone
-- Returns     id of each activity that should have started
SELECT DISTINCT a.id FROM activities_wake w
JOIN activities_activity a ON a.id = w.activity_id AND a.status = 'created' AND a.assignee_type = 'agent'
JOIN agents_agent g ON g.role = a.agent_role AND g.enabled AND NOT g.paused
JOIN tenants_tenant t ON t.id = a.tenant_id AND t.is_active AND NOT t.paused
LEFT JOIN agents_agentconfig c ON c.tenant_id = a.tenant_id AND c.role = a.agent_role
WHERE w.state = 'pending'
  AND greatest(w.created_at, w.due_at) < clock_timestamp() - %(patience)s * interval '1 second'
  AND coalesce(c.enabled AND NOT c.paused, true)
  AND EXISTS (
    SELECT FROM activities_workerprocess p
    WHERE p.ended_at IS NULL AND a.agent_role = ANY(p.roles)
      AND p.beat_at > clock_timestamp() - %(silence)s * interval '1 second')
  AND NOT EXISTS (
    SELECT FROM tenants_pause p WHERE p.tenant_id = a.tenant_id AND (p.kind = 'provider' OR p.subject IN (a.pipeline_id::text, a.schedule_id::text)))
  -- Whatever runs for this tenant or role may be what fills the caps.
  AND NOT EXISTS (
    SELECT FROM activities_activityrun r JOIN activities_activity b ON b.id = r.activity_id
    WHERE r.status = 'running' AND NOT r.parked AND (b.tenant_id = a.tenant_id OR b.agent_role = a.agent_role))
  -- Its agent put it aside and still talks: the slot is the call's until that ends.
  AND NOT EXISTS (
    SELECT FROM activities_activityrun r JOIN activities_workerprocess p ON p.id = r.worker_id AND p.ended_at IS NULL
    WHERE r.activity_id = a.id AND r.ended_by_tool <> '')
UNION
SELECT activity_id FROM activities_deadline
WHERE happened_at IS NULL AND at < clock_timestamp() - %(patience)s * interval '1 second'
UNION
SELECT coalesce(activity_id, mailbox_item_id) FROM activities_deadletter
WHERE handled_at IS NULL AND created_at < clock_timestamp() - %(patience)s * interval '1 second'
