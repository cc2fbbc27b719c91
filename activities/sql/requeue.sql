-- Ends a run without a result and makes the activity claimable again. The run's wakes become pending again; its own wake becomes a row.
-- A delay applies to the activity, so it also delays wakes that came during the run. Work that waits for a budget has no time, so its wakes
-- for later keep theirs, at which the budget is asked again.
-- Parameters  tenant, activity, run, fence, run_status, error, due_at, cause, sources, target, verb, actor,
--             attempts (added, may be -1), stalls (added), detail
-- Returns     one row with the activity after the move, `held`: whether a question holds it, and `reserved`: whether budgets hold a
--             reservation for the run; nothing if the run was superseded, cancelled or has ended.
-- If an equal wake is pending by now, the run's wake is consumed instead, because equal wakes merge.
WITH before AS (
    SELECT id, status FROM activities_activity
    WHERE tenant_id = %(tenant)s AND id = %(activity)s AND fence = %(fence)s AND status = ANY(%(sources)s)
    FOR UPDATE
), moved AS (
    UPDATE activities_activity a
    SET status = %(target)s, version = a.version + 1, attempts = greatest(a.attempts + %(attempts)s, 0),
        stalls = a.stalls + %(stalls)s, error = %(error)s
    FROM before WHERE a.tenant_id = %(tenant)s AND a.id = %(activity)s
    RETURNING a.*, before.status AS source
), run AS (
    UPDATE activities_activityrun r SET status = %(run_status)s, ended_at = clock_timestamp(), error = %(error)s
    FROM moved WHERE r.id = %(run)s
    RETURNING r."grant", r.accepted_at, r.wake_reason, r.own_wake
), returned AS (
    UPDATE activities_wake w
    SET state = CASE WHEN EXISTS (
            SELECT FROM activities_wake p WHERE p.activity_id = w.activity_id AND p.state = 'pending'
              AND p.reason = w.reason AND p.fingerprint = w.fingerprint) THEN 'consumed' ELSE 'pending' END,
        run_id = NULL, due_at = %(due_at)s, cause = %(cause)s
    WHERE w.activity_id = %(activity)s AND w.state = 'taken' AND w.run_id = %(run)s AND EXISTS (SELECT FROM moved)
), own AS (
    INSERT INTO activities_wake (id, tenant_id, activity_id, reason, cause, payload, fingerprint, state, due_at, merged, provenance, created_at)
    SELECT moved.id, moved.tenant_id, moved.id, run.wake_reason, %(cause)s, run.own_wake -> 'payload', '', 'pending',
           %(due_at)s, 0, nullif(run.own_wake -> 'provenance', 'null'), moved.created_at
    FROM moved, run WHERE run.own_wake IS NOT NULL
    ON CONFLICT DO NOTHING
), delayed AS (
    UPDATE activities_wake w
    SET due_at = greatest(w.due_at, %(due_at)s), cause = CASE WHEN w.cause = 'later' THEN w.cause ELSE %(cause)s END
    WHERE w.activity_id = %(activity)s AND w.state = 'pending' AND %(due_at)s::timestamptz IS NOT NULL AND EXISTS (SELECT FROM moved)
      AND NOT (w.cause = 'later' AND %(cause)s = 'budget')
), event AS (
    INSERT INTO activities_activityevent (tenant_id, activity_id, seq, verb, source, target, actor, run_id, detail, at)
    SELECT tenant_id, id, version, %(verb)s, source, status, %(actor)s, %(run)s, %(detail)s, clock_timestamp() FROM moved
)
SELECT moved.*, run."grant", run.accepted_at,
       EXISTS (SELECT FROM approval_linked_activities l WHERE l.activity_id = %(activity)s AND l.state = 'waiting') AS held,
       EXISTS (SELECT FROM tenants_reservation k WHERE k.run_id = %(run)s) AS reserved
FROM moved, run
