-- Claims a created activity for one run: raises the fencing number, takes every wake that is due, makes the run.
-- Parameters  tenant, activity, role, run, grant, worker, timeout, version, sources, target, verb
-- Returns     one row with what the run needs; none when there is nothing (any more) to claim.
-- Guarantee   of two claims at once one gets the row: the update re-checks the status after waiting for the other.
WITH claimed AS (
    UPDATE activities_activity a
    SET status = %(target)s, fence = a.fence + 1, attempts = a.attempts + 1, version = a.version + 1,
        assigned_at = clock_timestamp()
    WHERE a.tenant_id = %(tenant)s AND a.id = %(activity)s
      AND a.status = ANY(%(sources)s) AND a.assignee_type = 'agent' AND a.agent_role = %(role)s
      AND (a.expires_at IS NULL OR a.expires_at > now())
      AND EXISTS (
        SELECT FROM activities_wake w
        WHERE w.activity_id = a.id AND w.state = 'pending' AND (w.due_at IS NULL OR w.due_at <= now()))
    RETURNING a.id, a.tenant_id, a.name, a.description, a.agent_role, a.priority, a.params, a.input, a.input_ref,
              a.deliverable_id, a.pipeline_run_id, a.step, a.branch, a.round, a.fence, a.attempts, a.stalls, a.version,
              a.max_attempts, a.retry, a.timeout_seconds, a.requires_approval, a.group_key
), taken AS (
    UPDATE activities_wake w
    SET state = 'taken', run_id = %(run)s
    FROM claimed
    WHERE w.activity_id = claimed.id AND w.state = 'pending' AND (w.due_at IS NULL OR w.due_at <= now())
    RETURNING w.id, w.reason, w.payload
), run AS (
    INSERT INTO activities_activityrun
        (id, tenant_id, activity_id, status, fence, attempt, wake_reason, "grant", worker_id, timeout_seconds, beats, agent_version, session_id)
    SELECT %(run)s, claimed.tenant_id, claimed.id, 'running', claimed.fence, claimed.attempts,
           (SELECT reason FROM taken ORDER BY id DESC LIMIT 1),
           %(grant)s, %(worker)s, coalesce(claimed.timeout_seconds, %(timeout)s), 0, %(version)s, ''
    FROM claimed
), event AS (
    INSERT INTO activities_activityevent (tenant_id, activity_id, seq, verb, source, target, actor, run_id, detail, at)
    SELECT claimed.tenant_id, claimed.id, claimed.version, %(verb)s, 'created', %(target)s, 'worker', %(run)s,
           '{}'::jsonb, clock_timestamp()
    FROM claimed
)
SELECT claimed.*,
       (SELECT jsonb_agg(jsonb_build_object('id', t.id, 'reason', t.reason, 'payload', t.payload) ORDER BY t.id) FROM taken t)
           AS wakes,
       s.id AS spooled, s.content AS input_content, s.data AS input_data
FROM claimed
LEFT JOIN activities_outputspool s ON s.id = claimed.input_ref
