-- Counts activities of agents that may not start, by what holds them: a budget, a provider that refuses work, or a pause. Each activity is
-- counted once, under the first of these that applies, in the order of `wait_reasons`. Reads only waiting work, by index.
-- Parameters  adapters, providers: the model provider that each adapter calls (arrays of equal length);
--             refusals: codes of errors of runs which mean that a provider could not take the work
-- Returns     cause (budget, provider or paused), holder (its name for people), agent_role, held, tenants, period and period_start (of a
--             budget), due_at (when the provider is called again)
WITH waiting AS (
    SELECT a.id, a.tenant_id, a.agent_role, a.pipeline_id, a.schedule_id, a.run_now_at, w.later, w.retried_at
    FROM activities_activity a
    JOIN (
        SELECT activity_id, bool_and(coalesce(due_at > now(), false)) AS later, max(due_at) FILTER (WHERE cause = 'retry' AND due_at > now()) AS retried_at
        FROM activities_wake WHERE state = 'pending' GROUP BY activity_id
    ) w ON w.activity_id = a.id
    WHERE a.status = 'created' AND a.indexed_status = 'open' AND a.assignee_type = 'agent'
), found AS (
    SELECT waiting.agent_role, waiting.tenant_id,
           CASE WHEN b.id IS NOT NULL THEN 'budget' WHEN r.holder IS NOT NULL THEN 'provider' ELSE 'paused' END AS cause,
           coalesce(b.name, r.holder, p.holder) AS holder, b.period_start,
           -- What does not fit in the whole cap does not fit in the next period either.
           CASE WHEN m.amount <= b.cap AND b.cap > 0 THEN b.period WHEN b.id IS NOT NULL THEN 'total' END AS period,
           CASE WHEN b.id IS NULL THEN waiting.retried_at END AS due_at
    FROM waiting
    LEFT JOIN tenants_budgetwait m ON m.tenant_id = waiting.tenant_id AND m.activity_id = waiting.id
    LEFT JOIN tenants_budget b ON b.id = m.budget_id
    LEFT JOIN LATERAL (
        SELECT coalesce(last.error ->> 'held_by', waiting.agent_role) AS holder
        FROM (
            SELECT error FROM activities_activityrun
            WHERE tenant_id = waiting.tenant_id AND activity_id = waiting.id ORDER BY fence DESC LIMIT 1
        ) last
        WHERE last.error ->> 'code' = ANY(%(refusals)s::text[])
    ) r ON b.id IS NULL AND waiting.retried_at IS NOT NULL
    LEFT JOIN LATERAL (
        SELECT CASE
            WHEN NOT t.is_active THEN 'the tenant'
            WHEN g.paused OR NOT g.enabled THEN 'the role ' || waiting.agent_role || ' for all tenants'
            WHEN NOT c.enabled THEN 'the role ' || waiting.agent_role
            WHEN waiting.run_now_at IS NOT NULL THEN NULL
            WHEN t.paused THEN 'the tenant'
            WHEN c.paused THEN 'the role ' || waiting.agent_role
            ELSE (
                SELECT 'the ' || s.kind || ' ' || s.name FROM tenants_pause s
                WHERE s.tenant_id = waiting.tenant_id AND (
                    (s.kind = 'pipeline' AND s.subject = waiting.pipeline_id::text)
                    OR (s.kind = 'schedule' AND s.subject = waiting.schedule_id::text)
                    OR (s.kind = 'provider' AND s.subject = (
                        SELECT known.provider FROM unnest(%(adapters)s::text[], %(providers)s::text[]) AS known(adapter, provider)
                        WHERE known.adapter = coalesce(nullif(c.adapter, ''), g.adapter)))
                ) ORDER BY s.kind, s.name LIMIT 1
            ) END AS holder
        FROM tenants_tenant t
        LEFT JOIN agents_agent g ON g.role = waiting.agent_role
        LEFT JOIN agents_agentconfig c ON c.tenant_id = t.id AND c.role = waiting.agent_role
        WHERE t.id = waiting.tenant_id
    ) p ON b.id IS NULL AND NOT waiting.later
    WHERE b.id IS NOT NULL OR r.holder IS NOT NULL OR p.holder IS NOT NULL
)
SELECT cause, holder, agent_role, count(*) AS held, count(DISTINCT tenant_id) AS tenants, period, period_start, min(due_at) AS due_at
FROM found GROUP BY cause, holder, agent_role, period, period_start
ORDER BY cause, holder, agent_role
