-- I11  Concurrent runs stay within the caps.
-- There are caps for a tenant and role, for a role, and for a tenant.
-- Parameters  since: only runs that started at this time or later are counted
-- Returns     id of each run that exceeded a cap when it started
-- The caps are the current ones, so runs from before a cap was lowered may look like too many.
WITH run AS (
    SELECT r.id, r.tenant_id, a.agent_role, r.started_at,
           CASE WHEN r.parked THEN r.accepted_at ELSE r.ended_at END AS ended_at  -- a run that waits for a batch holds no slot
    FROM activities_activityrun r JOIN activities_activity a ON a.id = r.activity_id
    WHERE r.started_at >= %(since)s
), counted AS (
    SELECT run.id, run.started_at, run.ended_at, scope.name, scope.cap
    FROM run
    JOIN agents_agent g ON g.role = run.agent_role
    JOIN tenants_tenant t ON t.id = run.tenant_id
    LEFT JOIN tenants_plan p ON p.key = t.plan_id
    LEFT JOIN agents_agentconfig c ON c.tenant_id = run.tenant_id AND c.role = run.agent_role
    CROSS JOIN LATERAL (VALUES
        (run.tenant_id || ':' || run.agent_role, coalesce(c.max_concurrency, (p.roles ->> run.agent_role)::int, g.tenant_concurrency)),
        ('role:' || run.agent_role, g.max_concurrency),
        ('tenant:' || run.tenant_id, coalesce(t.max_concurrency, p.max_concurrency))) AS scope(name, cap)
    WHERE scope.cap IS NOT NULL
), change AS (
    SELECT id, name, cap, started_at AS at, 1 AS step FROM counted
    UNION ALL
    SELECT NULL, name, cap, ended_at, -1 FROM counted WHERE ended_at IS NOT NULL
)
SELECT DISTINCT id FROM (
    SELECT id, cap, sum(step) OVER (PARTITION BY name ORDER BY at, step ROWS UNBOUNDED PRECEDING) AS running FROM change
) swept
WHERE running > cap AND id IS NOT NULL
