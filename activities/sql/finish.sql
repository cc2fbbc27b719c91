-- Accepts the result of a run: ends the run, keeps its output, moves the activity on.
-- Parameters  tenant, activity, run, fence, sources, target, verb, actor,
--             content, data, content_type
-- Returns     one row with the activity as it is now, whether it goes on although a question holds it (`held`), and whether budgets keep something
--             for the run (`reserved`); none when the run was superseded, cancelled or has ended.
-- Of a step of a run it is one statement with what settles that step, see `transitions.Following`, whose row comes last.
-- Guarantee   a wake that came during the run sends the activity back to created instead, for exactly one run that
--             carries all such wakes.
WITH before AS (
    SELECT id, status FROM activities_activity
    WHERE tenant_id = %(tenant)s AND id = %(activity)s AND fence = %(fence)s AND status = ANY(%(sources)s)
    FOR UPDATE
), moved AS (
    UPDATE activities_activity a
    SET status = CASE WHEN again.wanted THEN 'created' ELSE %(target)s END,
        version = a.version + 1, output_ref = %(run)s, error = NULL, attempts = CASE WHEN again.wanted THEN 0 ELSE a.attempts END,
        finished_at = CASE WHEN again.wanted OR %(target)s = 'awaiting_approval' THEN NULL ELSE clock_timestamp() END
    FROM before, (
        SELECT EXISTS (SELECT FROM activities_wake w WHERE w.activity_id = %(activity)s AND w.state = 'pending') AS wanted
    ) again
    WHERE a.tenant_id = %(tenant)s AND a.id = %(activity)s
    RETURNING a.id, a.tenant_id, a.name, a.status, a.version, a.agent_role, a.assignee_type, a.priority, a.group_key, a.group_scope, a.files, a.metadata, a.decision_rules,
              a.deliverable_id, a.pipeline_run_id, a.step, a.branch, a.round, a.link_kind, a.parent_id, a.is_approval_gate,
              a.input_ref, a.output_ref, a.schedule_id, a.pipeline_id, a.period_id, a.template, a.run_now_at, a.mailbox_id, a.created_at, before.status AS source, again.wanted AS again
), run AS (
    UPDATE activities_activityrun r
    SET status = 'completed', ended_at = clock_timestamp()
    FROM moved WHERE r.id = %(run)s
    RETURNING r."grant", r.accepted_at
), spool AS (
    INSERT INTO activities_outputspool (id, tenant_id, activity_id, content, data, content_type, created_at)
    SELECT %(run)s, moved.tenant_id, moved.id, %(content)s, %(data)s, %(content_type)s, clock_timestamp() FROM moved
), event AS (
    INSERT INTO activities_activityevent (tenant_id, activity_id, seq, verb, source, target, actor, run_id, detail, at)
    SELECT tenant_id, id, version, CASE WHEN again THEN 'release' ELSE %(verb)s END, source, status, %(actor)s, %(run)s,
           '{}'::jsonb, clock_timestamp()
    FROM moved
){following}
SELECT moved.*, run."grant", run.accepted_at,
       CASE WHEN moved.again THEN EXISTS (
           SELECT FROM approval_linked_activities l WHERE l.activity_id = %(activity)s AND l.state = 'waiting') ELSE false END AS held,
       EXISTS (SELECT FROM tenants_reservation k WHERE k.run_id = %(run)s) AS reserved{followed}
FROM moved, run{with_followed}
