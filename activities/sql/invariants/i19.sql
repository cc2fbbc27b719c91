-- I19  Nothing due is left waiting: work with a free worker, deadlines, failures to report.
-- Parameters  patience: seconds that it may wait; silence: seconds without a heartbeat after which a worker counts as gone;
--             adapters, providers: the model provider that each adapter calls (arrays of equal length)
-- Returns     id of each activity that should have started, whose deadline should have acted, or whose failure should have been reported
SELECT DISTINCT a.id FROM activities_wake w
JOIN activities_activity a ON a.id = w.activity_id AND a.status = 'created' AND a.assignee_type = 'agent'
JOIN agents_agent g ON g.role = a.agent_role AND g.enabled AND NOT g.paused
JOIN tenants_tenant t ON t.id = a.tenant_id AND t.is_active
LEFT JOIN agents_agentconfig c ON c.tenant_id = a.tenant_id AND c.role = a.agent_role
WHERE w.state = 'pending'
  AND greatest(w.created_at, w.due_at) < clock_timestamp() - %(patience)s * interval '1 second'
  AND coalesce(c.enabled, true)
  AND EXISTS (
    SELECT FROM activities_workerprocess p
    WHERE p.ended_at IS NULL AND a.agent_role = ANY(p.roles)
      AND p.beat_at > clock_timestamp() - %(silence)s * interval '1 second')
  -- Work that a person lets run now ignores the pauses of its tenant.
  AND (a.run_now_at IS NOT NULL OR NOT (t.paused OR coalesce(c.paused, false) OR EXISTS (
    SELECT FROM tenants_pause p
    LEFT JOIN unnest(%(adapters)s::text[], %(providers)s::text[]) AS known(adapter, provider)
        ON known.adapter = coalesce(nullif(c.adapter, ''), g.adapter)
    WHERE p.tenant_id = a.tenant_id AND p.subject IN (a.pipeline_id::text, a.schedule_id::text, known.provider))))
  -- Any run of this tenant or role may use up a cap.
  AND NOT EXISTS (
    SELECT FROM activities_activityrun r JOIN activities_activity b ON b.id = r.activity_id
    WHERE r.status = 'running' AND NOT r.parked AND (b.tenant_id = a.tenant_id OR b.agent_role = a.agent_role))
  -- A tool has ended a run of it, but the call of the agent may continue, and holds the slot until it ends.
  AND NOT EXISTS (
    SELECT FROM activities_activityrun r JOIN activities_workerprocess p ON p.id = r.worker_id AND p.ended_at IS NULL
    WHERE r.activity_id = a.id AND r.ended_by_tool <> '')
UNION
SELECT d.activity_id FROM activities_deadline d JOIN tenants_tenant t ON t.id = d.tenant_id AND t.is_active
WHERE d.happened_at IS NULL AND d.at < clock_timestamp() - %(patience)s * interval '1 second'
UNION
SELECT coalesce(activity_id, mailbox_item_id) FROM activities_deadletter
WHERE handled_at IS NULL AND created_at < clock_timestamp() - %(patience)s * interval '1 second'
