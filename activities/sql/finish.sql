-- Accepts the results of runs: ends each run, stores its output, and moves its activity. For any number.
-- Parameters  activities (array of uuid, sorted), runs (array of uuid), fences (array of integer), contents (array of text), data
--             (array of jsonb), content_types (array of text): runs and their outputs; for all of them tenant, source, target, verb, actor,
--             locked: whether an earlier statement of the transaction has locked the activities
-- Returns     a row for each accepted result, with the activity after the move, `run_id`, `held`: whether it must run again although an
--             open question holds it, and `reserved`: whether budgets hold a reservation for the run. Nothing for a run that was
--             superseded, cancelled or has ended; nor, unless it is locked, for an activity about which a question is open.
-- For steps of pipeline runs, the statement also settles these steps. See `transitions.Following`, whose columns come last.
-- Guarantee   if wakes came during the run, the activity moves back to created instead, for exactly one run with all of them. The answer to
--             an open question is such a wake. If another transaction is recording it, this statement would wait for that transaction, but
--             not see its wake, because it reads wakes as of its own start. Hence `locked`. Opening a question writes the row of
--             running work, so the update finds another `xmin` than at its start, and leaves that result out as well.
--             The update locks the rows in the order of their ids, so these must be sorted.
-- Plan        as `claim.sql`.
WITH result AS MATERIALIZED (
    SELECT * FROM unnest(%(activities)s::uuid[], %(runs)s::uuid[], %(fences)s::int[], %(contents)s::text[], %(data)s::jsonb[], %(content_types)s::text[])
        AS g(activity, run, fence, content, data, content_type)
), moved AS (
    UPDATE activities_activity a
    SET status = CASE WHEN again.wanted THEN 'created' ELSE %(target)s END,
        version = a.version + 1, output_ref = result.run, error = NULL, attempts = CASE WHEN again.wanted THEN 0 ELSE a.attempts END,
        stalls = CASE WHEN again.wanted THEN 0 ELSE a.stalls END,
        finished_at = CASE WHEN again.wanted OR %(target)s = 'awaiting_approval' THEN NULL ELSE clock_timestamp() END
    FROM result CROSS JOIN LATERAL (
        SELECT EXISTS (SELECT FROM activities_wake w WHERE w.activity_id = result.activity AND w.state = 'pending' OFFSET 0) AS wanted,
               EXISTS (SELECT FROM approval_linked_activities l WHERE l.activity_id = result.activity AND l.state = 'waiting' OFFSET 0) AS is_asked,
               (SELECT b.xmin FROM activities_activity b WHERE b.id = result.activity) AS written_by
        OFFSET 0  -- else PostgreSQL looks up each subquery once for every use of its column
    ) again
    WHERE a.tenant_id = %(tenant)s AND a.id = ANY(%(activities)s::uuid[]) AND a.id = result.activity
      AND a.fence = result.fence AND a.status = %(source)s AND (%(locked)s::boolean OR NOT again.is_asked AND a.xmin = again.written_by)
    RETURNING a.id, a.tenant_id, a.name, a.status, a.version, a.agent_role, a.assignee_type, a.priority, a.group_key, a.group_scope, a.files, a.metadata, a.decision_rules,
              a.deliverable_id, a.pipeline_run_id, a.step, a.branch, a.round, a.link_kind, a.parent_id, a.is_approval_gate,
              a.input_ref, a.output_ref, a.schedule_id, a.pipeline_id, a.period_id, a.template, a.run_now_at, a.mailbox_id, a.created_at,
              %(source)s AS source, result.run AS run_id, again.wanted AS again
), run AS (
    UPDATE activities_activityrun r
    SET status = 'completed', ended_at = clock_timestamp()
    FROM moved WHERE r.id = ANY(%(runs)s::uuid[]) AND r.id = moved.run_id
    RETURNING r.id, r."grant", r.accepted_at
), spool AS (
    INSERT INTO activities_outputspool (id, tenant_id, activity_id, content, data, content_type, created_at)
    SELECT result.run, moved.tenant_id, moved.id, result.content, result.data, result.content_type, clock_timestamp()
    FROM moved JOIN result ON result.run = moved.run_id
), event AS (
    INSERT INTO activities_activityevent (tenant_id, activity_id, seq, verb, source, target, actor, run_id, detail, at)
    SELECT tenant_id, id, version, CASE WHEN again THEN 'release' ELSE %(verb)s END, source, status, %(actor)s, run_id,
           '{}'::jsonb, clock_timestamp()
    FROM moved
){following}
SELECT moved.*, run."grant", run.accepted_at,
       CASE WHEN moved.again THEN EXISTS (
           SELECT FROM approval_linked_activities l WHERE l.activity_id = moved.id AND l.state = 'waiting' OFFSET 0) ELSE false END AS held,
       EXISTS (SELECT FROM tenants_reservation k WHERE k.run_id = moved.run_id OFFSET 0) AS reserved{followed}
FROM moved JOIN run ON run.id = moved.run_id{with_followed}
