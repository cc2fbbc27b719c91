-- Accepts the results of runs: ends each run, keeps its output, moves its activity on. One statement for any number.
-- Parameters  activities (array of uuid), runs (array of uuid), fences (array of integer): whose results; contents (array of text), data
--             (array of jsonb), content_types (array of text): their outputs; for all of them tenant, source, target, verb, actor
-- Returns     a row for each accepted result, with the activity as it is now, `run_id`, whether it goes on although a question holds it
--             (`held`), and whether budgets keep something for the run (`reserved`); none for a run that was superseded, cancelled or has ended.
-- Of steps of runs it is one statement with what settles these steps, see `transitions.Following`, whose rows come last.
-- Guarantee   a wake that came during the run sends the activity back to created instead, for exactly one run that
--             carries all such wakes. Rows are locked in the order of their ids, in which they must be given: the update locks them itself.
-- Plan        as `claim.sql`.
WITH given AS MATERIALIZED (
    SELECT * FROM unnest(%(activities)s::uuid[], %(runs)s::uuid[], %(fences)s::int[], %(contents)s::text[], %(data)s::jsonb[], %(content_types)s::text[])
        AS g(activity, run, fence, content, data, content_type)
), moved AS (
    UPDATE activities_activity a
    SET status = CASE WHEN again.wanted THEN 'created' ELSE %(target)s END,
        version = a.version + 1, output_ref = given.run, error = NULL, attempts = CASE WHEN again.wanted THEN 0 ELSE a.attempts END,
        finished_at = CASE WHEN again.wanted OR %(target)s = 'awaiting_approval' THEN NULL ELSE clock_timestamp() END
    FROM given CROSS JOIN LATERAL (
        SELECT EXISTS (SELECT FROM activities_wake w WHERE w.activity_id = given.activity AND w.state = 'pending' OFFSET 0) AS wanted
    ) again
    WHERE a.tenant_id = %(tenant)s AND a.id = ANY(%(activities)s::uuid[]) AND a.id = given.activity
      AND a.fence = given.fence AND a.status = %(source)s
    RETURNING a.id, a.tenant_id, a.name, a.status, a.version, a.agent_role, a.assignee_type, a.priority, a.group_key, a.group_scope, a.files, a.metadata, a.decision_rules,
              a.deliverable_id, a.pipeline_run_id, a.step, a.branch, a.round, a.link_kind, a.parent_id, a.is_approval_gate,
              a.input_ref, a.output_ref, a.schedule_id, a.pipeline_id, a.period_id, a.template, a.run_now_at, a.mailbox_id, a.created_at,
              %(source)s AS source, given.run AS run_id, again.wanted AS again
), run AS (
    UPDATE activities_activityrun r
    SET status = 'completed', ended_at = clock_timestamp()
    FROM moved WHERE r.id = ANY(%(runs)s::uuid[]) AND r.id = moved.run_id
    RETURNING r.id, r."grant", r.accepted_at
), spool AS (
    INSERT INTO activities_outputspool (id, tenant_id, activity_id, content, data, content_type, created_at)
    SELECT given.run, moved.tenant_id, moved.id, given.content, given.data, given.content_type, clock_timestamp()
    FROM moved JOIN given ON given.run = moved.run_id
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
