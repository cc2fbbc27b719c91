-- Parts of the statements that claim activities: `claim.sql`, and `submit.sql` for work that a worker starts immediately. Each part
-- replaces the placeholder with its name. `claimed` has a row for each claimed activity: `columns`, `started` (else its input must be
-- fetched), `reason`, `own_wake` (see `ActivityRun`), `session`, `run`, `grant` and `began_at`.
-- Parameters  tenant, role, worker, timeout, agent_version, briefing (digest of the agent's instructions), day;
--             claim and start: verb, target
-- Returns     nothing: the parts are not a statement

-- part: columns
-- The columns of activity `a` that its run needs.
a.id, a.tenant_id, a.name, a.description, a.agent_role, a.priority, a.params, a.input, a.input_ref,
a.deliverable_id, a.pipeline_run_id, a.pipeline_id, a.step, a.fence, a.attempts, a.timeout_seconds, a.expires_at, a.due_at, a.group_key, a.files,
a.requires_approval, a.link_kind, a.version, a.mailbox_id, a.agent_options

-- part: session
-- The live session of `matter`, and whether its briefing is this one or not known.
CASE WHEN matter IS NOT NULL THEN (
    SELECT jsonb_build_object('id', x.external_session_id, 'fits', x.briefing IN ('', %(briefing)s))
    FROM agents_agentsession x
    WHERE x.tenant_id = %(tenant)s AND x.deliverable_id = matter AND x.role = %(role)s AND x.ended_at IS NULL
) END

-- part: event
-- A start whose source is `created` also represents the claim before it, see `ActivityEvent`.
SELECT tenant_id, id, version, CASE WHEN started THEN %(start_verb)s ELSE %(claim_verb)s END, 'created',
       CASE WHEN started THEN %(start_target)s ELSE %(claim_target)s END, 'worker', run, '{}'::jsonb, clock_timestamp()
FROM claimed

-- part: run
run AS (
    INSERT INTO activities_activityrun
        (id, tenant_id, activity_id, status, fence, attempt, wake_reason, own_wake, "grant", worker_id, timeout_seconds, beats, agent_version,
         session_id, started_at)
    SELECT run, tenant_id, id, 'running', fence, attempts, reason, own_wake, "grant", %(worker)s,
           coalesce(timeout_seconds, %(timeout)s), 0, %(agent_version)s,
           CASE WHEN (session ->> 'fits')::boolean THEN session ->> 'id' ELSE '' END, began_at
    FROM claimed
), entry AS (
    INSERT INTO tenants_usageentry
        (tenant_id, at, day, agent_role, deliverable_id, activity_id, run_id, pipeline_run_id, pipeline_id, model, input_tokens,
         output_tokens, dollars, runs, unpriced)
    SELECT tenant_id, clock_timestamp(), %(day)s, agent_role, deliverable_id, id, run, pipeline_run_id, pipeline_id, '', 0, 0, 0, 1, false
    FROM claimed
)
