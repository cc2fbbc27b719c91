-- I07  Every run with an agent shows signs of life.
-- Before the agent accepts the work, the worker beats. After that, the deadline has not passed, and a run that waits for a batch has an
-- open item.
-- Parameters  silence: seconds after which recovery must have reacted
-- Returns     id of each activity that is stuck
-- A worker that never beat, or that does not exist, counts as silent.
SELECT r.activity_id AS id FROM activities_activityrun r LEFT JOIN activities_workerprocess w ON w.id = r.worker_id
WHERE r.status = 'running' AND CASE
    WHEN r.accepted_at IS NULL THEN w.id IS NULL OR w.ended_at IS NOT NULL
        OR coalesce(w.beat_at, '-infinity') < clock_timestamp() - %(silence)s * interval '1 second'
    ELSE r.accepted_at + (r.timeout_seconds + %(silence)s) * interval '1 second' < clock_timestamp()
        OR r.parked AND NOT EXISTS (
            SELECT FROM activities_batchitem i
            WHERE i.activity_id = r.activity_id AND i.fence = r.fence AND i.state IN ('collected', 'bound')) END
