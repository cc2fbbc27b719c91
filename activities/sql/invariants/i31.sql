-- I31  Each time of a schedule fires once, and its jobs agree with their work.
-- Parameters  settled: the statuses in which an activity has settled
-- Returns     id of each firing, execution or job that violates this
-- A time that fired has its execution, and an execution of a time has its firing.
SELECT f.id FROM pipelines_firing f
LEFT JOIN pipelines_scheduleexecution e ON e.schedule_id = f.schedule_id AND e.nominal_at = f.nominal_at
WHERE f.state IN ('fired', 'queued') AND e.id IS NULL
   OR f.state = 'queued' AND e.status <> 'queued'
   OR f.state = 'skipped' AND e.status <> 'cancelled'
UNION ALL
SELECT e.id FROM pipelines_scheduleexecution e
LEFT JOIN pipelines_firing f ON f.schedule_id = e.schedule_id AND f.nominal_at = e.nominal_at
WHERE e.schedule_id IS NOT NULL AND e.nominal_at IS NOT NULL AND f.id IS NULL
UNION ALL
-- A firing for a series of skipped times contains no time of another firing.
SELECT f.id FROM pipelines_firing f JOIN pipelines_firing o
    ON o.schedule_id = f.schedule_id AND o.id <> f.id AND o.nominal_at BETWEEN f.nominal_at AND f.last_at
WHERE f.last_at IS NOT NULL
UNION ALL
-- A finished execution has the time of its end, and none of its jobs is unfinished.
SELECT e.id FROM pipelines_scheduleexecution e
WHERE e.status IN ('success', 'partial', 'failed') AND e.finished_at IS NULL
   OR e.status IN ('queued', 'running') AND e.finished_at IS NOT NULL
   OR e.finished_at IS NOT NULL AND EXISTS (
        SELECT FROM pipelines_schedulejob j WHERE j.execution_id = e.id AND j.state IN ('waiting', 'enqueued'))
UNION ALL
-- An enqueued job has its work, a waiting one has none yet, and an ended one has the outcome of its work.
SELECT j.id FROM pipelines_schedulejob j
LEFT JOIN activities_activity a ON a.id = j.activity_id
LEFT JOIN pipelines_pipelinerun r ON r.id = j.pipeline_run_id
WHERE j.state = 'waiting' AND (j.activity_id IS NOT NULL OR j.pipeline_run_id IS NOT NULL)
   OR j.state = 'enqueued' AND a.id IS NULL AND r.id IS NULL
   OR a.id IS NOT NULL AND (j.state = 'enqueued') <> NOT (a.status = ANY(%(settled)s))
   OR a.id IS NOT NULL AND (j.state = 'done') <> (a.status IN ('done', 'approved'))
   OR r.id IS NOT NULL AND (j.state = 'enqueued') <> (r.status = 'running')
   OR r.id IS NOT NULL AND (j.state = 'done') <> (r.status = 'completed')
