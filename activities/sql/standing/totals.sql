-- Counts processes, outputs in the spool, and activities that need a person.
-- Parameters  silence: seconds without a heartbeat after which a process is silent
-- Returns     one row: workers, silent, lost (in the last hour), spooled, spooled_seconds, failed, needs_review, blocked
SELECT p.workers, p.silent, p.lost, o.spooled, o.spooled_seconds, a.failed, a.needs_review, a.blocked
FROM (
    SELECT count(*) FILTER (WHERE ended_at IS NULL AND beating) AS workers,
           count(*) FILTER (WHERE ended_at IS NULL AND NOT beating) AS silent,
           count(*) FILTER (WHERE end_reason = 'lost' AND ended_at > clock_timestamp() - interval '1 hour') AS lost
    FROM activities_workerprocess
    CROSS JOIN LATERAL (SELECT beat_at > clock_timestamp() - %(silence)s * interval '1 second' AS beating) b
) p, (
    SELECT count(*) AS spooled, coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float AS spooled_seconds
    FROM activities_outputspool
) o, (
    SELECT count(*) FILTER (WHERE status = 'failed') AS failed,
           count(*) FILTER (WHERE status = 'needs_review') AS needs_review,
           count(*) FILTER (WHERE status = 'blocked') AS blocked
    FROM activities_activity WHERE indexed_status IN ('failed', 'needs_review', 'blocked')
) a
