-- Parts of `submit.sql` for activities that wait to be claimed.
-- Parameters  tenant
-- Returns     the rows of `submit.sql`

-- part: facts

-- part: with_facts

-- part: columns
a.id, a.group_key

-- part: state_columns
status, version, fence, attempts

-- part: state
'created', 1, 0, 0

-- part: claimed

-- part: claim_event

-- part: run_or_wake
, wake AS (
    INSERT INTO activities_wake
        (id, tenant_id, activity_id, reason, cause, payload, fingerprint, merged, provenance, created_at, due_at, state)
    SELECT w.wake_id, %(tenant)s, w.id, w.wake_reason, 'wake', coalesce(w.wake_payload, '{}'::jsonb), '', 0, w.provenance, c.created_at,
           CASE WHEN w.not_before > now() THEN w.not_before END, 'pending'
    FROM wanted w JOIN created c ON c.id = w.id
    WHERE w.assignee_type = 'agent'
)

-- part: rows
SELECT id, created_at, group_key FROM created
