-- Finds roles and tenants with work that could start but has waited for longer than the target. Work that waits for money, or that is
-- paused or disabled on purpose, is ignored. Work that a person lets run now ignores the pauses of its tenant.
-- Parameters  before: an id above those of all wakes that have waited so long; target: seconds
--             adapters, providers: the model provider that each adapter calls (arrays of equal length)
-- Returns     agent_role, tenant_id; distinct
-- The waiting time is defined as in `standing/queues.sql`. Ids begin with their time, so only old wakes are read.
SELECT DISTINCT a.agent_role, a.tenant_id
FROM (
    SELECT tenant_id, activity_id, cause, created_at FROM activities_wake WHERE state = 'pending' AND due_at IS NULL AND id < %(before)s
    UNION ALL
    SELECT tenant_id, activity_id, cause, created_at FROM activities_wake WHERE state = 'pending' AND due_at <= now() AND id < %(before)s
) w
JOIN activities_activity a ON a.tenant_id = w.tenant_id AND a.id = w.activity_id AND a.status = 'created' AND a.assignee_type = 'agent'
JOIN tenants_tenant t ON t.id = a.tenant_id AND t.is_active
JOIN agents_agent g ON g.role = a.agent_role AND g.enabled AND NOT g.paused
LEFT JOIN agents_agentconfig c ON c.tenant_id = a.tenant_id AND c.role = a.agent_role
CROSS JOIN LATERAL (SELECT CASE WHEN a.fence = 0 THEN greatest(w.created_at, a.not_before) ELSE (
    SELECT greatest(e.at, least((e.detail ->> 'due_at')::timestamptz, a.run_now_at), a.not_before)
    FROM activities_activityevent e WHERE e.activity_id = a.id AND e.source IS DISTINCT FROM e.target ORDER BY e.seq DESC LIMIT 1) END AS since) s
WHERE w.cause <> 'budget' AND coalesce(c.enabled, true) AND s.since < now() - %(target)s * interval '1 second'
  AND (a.run_now_at IS NOT NULL OR NOT (t.paused OR coalesce(c.paused, false) OR EXISTS (
    SELECT FROM tenants_pause p
    LEFT JOIN unnest(%(adapters)s::text[], %(providers)s::text[]) AS known(adapter, provider)
        ON known.adapter = coalesce(nullif(c.adapter, ''), g.adapter)
    WHERE p.tenant_id = a.tenant_id AND p.subject IN (a.pipeline_id::text, a.schedule_id::text, known.provider))))
ORDER BY a.agent_role, a.tenant_id
