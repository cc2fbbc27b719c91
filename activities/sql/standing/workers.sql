-- Counts worker processes with a current heartbeat, and their seats, by role. A process that serves several roles counts for each of them.
-- Parameters  silence: seconds without a heartbeat after which a process is not counted
-- Returns     role, workers, seats (of the processes that take new work of the role)
SELECT role, count(*) AS workers,
       coalesce(sum(p.concurrency) FILTER (WHERE NOT p.closed ?| ARRAY['*', role]), 0)::int AS seats
FROM activities_workerprocess p CROSS JOIN LATERAL unnest(p.roles) AS role
WHERE p.ended_at IS NULL AND p.beat_at > clock_timestamp() - %(silence)s * interval '1 second'
GROUP BY role
