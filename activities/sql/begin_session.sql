-- Makes a session the live session of its deliverable and role. If it is already live, replaces its briefing, unless the new one is empty.
-- Parameters  id (for a new row), tenant, deliverable, role, external_id, briefing
-- Returns     id of the row; no row if another session is live, whose row is then locked until the transaction ends
-- Guarantee   Of two concurrent calls, the later one waits until the earlier one commits, and then finds its row.
INSERT INTO agents_agentsession AS s
    (id, tenant_id, deliverable_id, role, external_session_id, briefing, state, created_at, updated_at, end_reason)
VALUES (%(id)s, %(tenant)s, %(deliverable)s, %(role)s, %(external_id)s, %(briefing)s, '{}', clock_timestamp(), clock_timestamp(), '')
ON CONFLICT (tenant_id, deliverable_id, role) WHERE ended_at IS NULL
DO UPDATE SET briefing = coalesce(nullif(EXCLUDED.briefing, ''), s.briefing), updated_at = clock_timestamp()
WHERE s.external_session_id = EXCLUDED.external_session_id
RETURNING id
