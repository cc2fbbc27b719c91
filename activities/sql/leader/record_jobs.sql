-- Stores the state of the system jobs.
-- Parameters  epoch; jobs: JSON array of objects with name, owner, period, budget, error, failures,
--             duration and lag, and with started, finished and succeeded as seconds ago (null: not in this epoch)
-- Returns     the names of the stored jobs
-- Guarantee   the report of an earlier leader changes nothing that a later one has written.
-- The first report of a leader has all jobs, so rows of earlier leaders that are not in it are of jobs that no longer exist: deleted here.
WITH removed AS (
    DELETE FROM activities_systemjob
    WHERE epoch < %(epoch)s AND name NOT IN (SELECT name FROM jsonb_to_recordset(%(jobs)s) AS k (name text))
)
INSERT INTO activities_systemjob (name, owner, period_seconds, budget_seconds, epoch, started_at, finished_at, succeeded_at,
                                  duration_seconds, lag_seconds, failures, error)
SELECT name, owner, period, budget, %(epoch)s, now() - started * interval '1 second', now() - finished * interval '1 second',
       now() - succeeded * interval '1 second', duration, lag, failures, error
FROM jsonb_to_recordset(%(jobs)s) AS j (name text, owner text, period float8, budget float8, started float8, finished float8,
                                        succeeded float8, duration float8, lag float8, failures int, error text)
ON CONFLICT (name) DO UPDATE
SET owner = EXCLUDED.owner, period_seconds = EXCLUDED.period_seconds, budget_seconds = EXCLUDED.budget_seconds, epoch = EXCLUDED.epoch,
    started_at = coalesce(EXCLUDED.started_at, activities_systemjob.started_at),
    finished_at = coalesce(EXCLUDED.finished_at, activities_systemjob.finished_at),
    succeeded_at = coalesce(EXCLUDED.succeeded_at, activities_systemjob.succeeded_at),
    duration_seconds = EXCLUDED.duration_seconds, lag_seconds = EXCLUDED.lag_seconds, failures = EXCLUDED.failures, error = EXCLUDED.error
WHERE activities_systemjob.epoch <= EXCLUDED.epoch
RETURNING name
