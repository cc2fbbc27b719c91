-- Who leads, and how the jobs of that leader go.
-- Returns     lease_epoch, led and expired (seconds since the lead was taken, and since the lease ran out; the latter below 0 while it
--             lasts), and of each job name, owner, period, error, failures, duration, lag, and finished and succeeded as seconds ago.
--             One row without a name when there are no jobs; none when nobody ever led
SELECT l.epoch AS lease_epoch, extract(epoch FROM clock_timestamp() - l.since)::float8 AS led,
       extract(epoch FROM clock_timestamp() - l.expires_at)::float8 AS expired,
       j.name, j.owner, j.period_seconds AS period, j.error, j.failures, j.duration_seconds AS duration, j.lag_seconds AS lag,
       extract(epoch FROM clock_timestamp() - j.finished_at)::float8 AS finished,
       extract(epoch FROM clock_timestamp() - j.succeeded_at)::float8 AS succeeded
FROM activities_leaderlease l LEFT JOIN activities_systemjob j ON true
ORDER BY j.name
