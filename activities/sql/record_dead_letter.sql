-- Creates the dead letter of a failed activity. An activity has at most one open dead letter.
-- Parameters  id, tenant, activity, run, role, reason, fingerprint, error, attempts, stalls, pipeline_run
-- Returns     id; nothing if one is open already
INSERT INTO activities_deadletter
    (id, tenant_id, activity_id, run_id, agent_role, reason, fingerprint, error, attempts, stalls, cost_usd, pipeline_run_id, state,
     closed_by, created_at)
SELECT %(id)s, %(tenant)s, %(activity)s, %(run)s, %(role)s, %(reason)s, %(fingerprint)s, %(error)s, %(attempts)s, %(stalls)s,
       -- Cut to the size of the column, because a failure must be recorded whatever the agent has reported.
       least(coalesce((SELECT sum((r.usage ->> 'cost_usd')::numeric) FROM activities_activityrun r
                       WHERE r.tenant_id = %(tenant)s AND r.activity_id = %(activity)s), 0), 99999999),
       %(pipeline_run)s, 'open', '', clock_timestamp()
ON CONFLICT (activity_id) WHERE state = 'open' DO NOTHING
RETURNING id
