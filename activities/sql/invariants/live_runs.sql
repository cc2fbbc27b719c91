-- Selects the runs that hold a slot.
-- Returns     activity_id and grant of each, and `over`: the run has ended, but a worker still waits for its agent, so that the slot
--             may be in use until the call ends
SELECT activity_id, "grant", false AS over FROM activities_activityrun WHERE status = 'running' AND NOT parked
UNION ALL
SELECT r.activity_id, r."grant", true FROM activities_activityrun r
JOIN activities_workerprocess w ON w.id = r.worker_id AND w.ended_at IS NULL
WHERE r.status = 'cancelled' OR r.status = 'completed' AND r.ended_by_tool <> '' OR r.status = 'failed' AND r.error ->> 'code' = 'budget'
