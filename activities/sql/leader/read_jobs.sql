-- Reads the leader's lease and the state of the system jobs.
-- Returns     lease_epoch; led and expired: seconds since this leader began, and since the lease expired (negative while it lasts); of each
--             job name, owner, period, error, failures, duration, lag, and finished and succeeded as seconds ago.
--             One row without a name if there are no jobs; nothing if there was never a leader.
SELECT l.epoch AS lease_epoch, extract(epoch FROM clock_timestamp() - l.since)::float8 AS led,
       extract(epoch FROM clock_timestamp() - l.expires_at)::float8 AS expired,
       j.name, j.owner, j.period_seconds AS period, j.error, j.failures, j.duration_seconds AS duration, j.lag_seconds AS lag,
       extract(epoch FROM clock_timestamp() - j.finished_at)::float8 AS finished,
       extract(epoch FROM clock_timestamp() - j.succeeded_at)::float8 AS succeeded
FROM activities_leaderlease l LEFT JOIN activities_systemjob j ON true
ORDER BY j.name
