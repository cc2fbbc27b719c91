-- I07  Nothing is with an agent without a sign of life: its worker beats, or it accepted and its deadline is ahead;
--      what waits for a batch has an open item that somebody looks after.
-- Parameters  silence: seconds after which recovery has had its chance
-- Returns     id of each activity that is stuck
-- A worker that never beat, or is not there at all, counts as silent.
SELECT r.activity_id AS id FROM activities_activityrun r LEFT JOIN activities_workerprocess w ON w.id = r.worker_id
WHERE r.status = 'running' AND CASE
    WHEN r.accepted_at IS NULL THEN w.id IS NULL OR w.ended_at IS NOT NULL
        OR coalesce(w.beat_at, '-infinity') < clock_timestamp() - %(silence)s * interval '1 second'
    ELSE r.accepted_at + (r.timeout_seconds + %(silence)s) * interval '1 second' < clock_timestamp()
        OR r.parked AND NOT EXISTS (
            SELECT FROM activities_batchitem i
            WHERE i.activity_id = r.activity_id AND i.fence = r.fence AND i.state IN ('collected', 'bound')) END
