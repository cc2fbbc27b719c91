-- Creates activities with their first event and, for agents that do not start immediately, their first wake. For any number.
-- With `beginning`, only activities of steps that begin in the same statement are created: those in `begun` (id, round). See
-- `submission.Beginning`.
-- Parameters  tenant, actor, rows: jsonb array of objects with the columns below
-- Returns     id, created_at, group_key of each created activity. An activity that is missing collided with a live dedup key or an existing
--             step.
-- Parts       beginning, begun, round: of the steps that begin. The others are those of `submit_claimed.sql` if the statement also claims
--             the activity, else of `submit_waiting.sql`.
WITH {beginning}wanted AS (
    SELECT * FROM jsonb_to_recordset(%(rows)s) AS w(
        id uuid, name text, description text, assignee_type text, agent_role text, human_role text,
        is_approval_gate boolean, requires_approval boolean, priority smallint, params jsonb, metadata jsonb,
        input jsonb, input_ref uuid, parent_id uuid, link_kind text, deliverable_id uuid, pipeline_run_id uuid, pipeline_id uuid, period_id uuid, template text,
        step text, branch integer, round smallint, schedule_id uuid, dedup_key text, group_key text, group_scope text, files jsonb, not_before timestamptz,
        expires_at timestamptz, due_at timestamptz, timeout_seconds integer, retry jsonb, max_attempts smallint,
        decision_rules jsonb, reviewer_notes text, mailbox_id uuid,
        agent_options jsonb, wake_reason text, wake_payload jsonb, wake_id uuid, provenance jsonb)
), role AS (
    -- The expiry of waiting work by role, and the repositories on which command-line agents must not work at the same time.
    SELECT g.role, coalesce(c.backlog -> 'expire_after_seconds', g.backlog -> 'expire_after_seconds') AS patience,
           CASE WHEN coalesce(nullif(c.adapter, ''), g.adapter) = 'cli' AND g.options -> 'exclusive' IS DISTINCT FROM 'false'::jsonb
                THEN g.options ELSE '{}'::jsonb END AS options
    FROM agents_agent g LEFT JOIN agents_agentconfig c ON c.tenant_id = %(tenant)s AND c.role = g.role
    WHERE g.role = ANY(ARRAY(SELECT DISTINCT agent_role FROM wanted))
){facts}, created AS (
    INSERT INTO activities_activity AS a
        (id, tenant_id, name, description, assignee_type, agent_role, human_role, is_approval_gate,
         requires_approval, priority, params, metadata, input, input_ref, parent_id, link_kind, deliverable_id,
         pipeline_run_id, pipeline_id, period_id, template, step, branch, round, schedule_id, dedup_key, group_key, group_scope, files, not_before, expires_at, due_at, timeout_seconds,
         retry, max_attempts, decision_rules, reviewer_notes, mailbox_id, agent_options, wake_reason, stalls,
         created_at, {state_columns})
    SELECT id, %(tenant)s, name, description, assignee_type, agent_role, human_role, is_approval_gate,
           requires_approval, priority, params, metadata, input, input_ref, parent_id, link_kind, deliverable_id,
           pipeline_run_id, pipeline_id, period_id, template, step, branch, {round}, schedule_id, dedup_key,
           coalesce(group_key, 'repository:' || left(CASE WHEN role.options ? 'repositories' THEN params ->> 'repository'
               ELSE regexp_replace(role.options ->> 'repository', '^.*/', '') END, 150)),
           group_scope, files, not_before,
           coalesce(expires_at, CASE WHEN
               priority >= 20 AND parent_id IS NULL AND pipeline_run_id IS NULL AND deliverable_id IS NULL AND NOT requires_approval
               AND %(actor)s NOT LIKE 'user:%%' AND jsonb_typeof(role.patience) = 'number'
               THEN greatest(clock_timestamp(), not_before) + make_interval(secs => role.patience::text::float) END),
           due_at, timeout_seconds,
           retry, max_attempts, decision_rules, reviewer_notes, mailbox_id, agent_options, wake_reason, 0,
           clock_timestamp(), {state}
    FROM wanted
    {begun}
    {with_facts}
    LEFT JOIN role ON role.role = agent_role
    ON CONFLICT DO NOTHING
    RETURNING {columns}, a.created_at
){claimed}, event AS (
    INSERT INTO activities_activityevent (tenant_id, activity_id, seq, verb, source, target, actor, run_id, detail, at)
    SELECT %(tenant)s, id, 1, 'submit', NULL, 'created', %(actor)s, NULL::uuid, '{}'::jsonb, created_at FROM created
    {claim_event}
)
{run_or_wake}
{rows}
