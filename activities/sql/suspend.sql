-- Ends the live run of an activity that its agent has just suspended with a tool, without an output. The run has used up its wakes. Wakes
-- that came during the run stay pending for the next one.
-- Call it in the transaction of the activity's move, which holds its lock.
-- Parameters  tenant, activity, run, tool
-- Returns     grant, accepted_at, reserved: whether budgets hold a reservation for the run; nothing if the run is not live
WITH run AS (
    UPDATE activities_activityrun SET status = 'completed', ended_by_tool = %(tool)s, ended_at = clock_timestamp()
    WHERE tenant_id = %(tenant)s AND id = %(run)s AND status = 'running'
    RETURNING id, "grant", accepted_at
)
SELECT "grant", accepted_at, EXISTS (SELECT FROM tenants_reservation k WHERE k.run_id = run.id) AS reserved FROM run
