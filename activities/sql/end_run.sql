-- Ends the live run of an activity that has just moved for another reason (it failed, was cancelled, ...), and consumes every wake that no
-- run has taken. Call it in the transaction of that move, which holds the activity's lock.
-- Parameters  tenant, activity, run_status, error
-- Returns     the run's id, grant and accepted_at, and `reserved`: whether budgets hold a reservation for it; nothing without a live run.
WITH run AS (
    UPDATE activities_activityrun SET status = %(run_status)s, ended_at = clock_timestamp(), error = coalesce(%(error)s, error)
    WHERE tenant_id = %(tenant)s AND activity_id = %(activity)s AND status = 'running'
    RETURNING id, "grant", accepted_at, worker_id
), consumed AS (
    UPDATE activities_wake SET state = 'consumed'
    WHERE tenant_id = %(tenant)s AND activity_id = %(activity)s AND state = 'pending'
)
SELECT run.*, EXISTS (SELECT FROM tenants_reservation k WHERE k.run_id = run.id) AS reserved FROM run
