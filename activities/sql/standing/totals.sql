-- Counts processes, outputs in the spool, activities that need a person, and open items of mailboxes with external consumers.
-- Parameters  silence: seconds without a heartbeat after which a process is silent
-- Returns     one row: workers, silent, lost (in the last hour), spooled, spooled_seconds, failed, needs_review, blocked, items_waiting,
--             items_delayed, items_claimed, items_oldest_seconds (of those that wait)
SELECT p.workers, p.silent, p.lost, o.spooled, o.spooled_seconds, a.failed, a.needs_review, a.blocked,
       i.items_waiting, i.items_delayed, i.items_claimed, i.items_oldest_seconds
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
) a, (
    SELECT count(*) FILTER (WHERE waits AND due) AS items_waiting,
           count(*) FILTER (WHERE waits AND NOT due) AS items_delayed,
           count(*) FILTER (WHERE NOT waits) AS items_claimed,
           coalesce(extract(epoch FROM clock_timestamp() - min(greatest(created_at, due_at)) FILTER (WHERE waits AND due)), 0)::float
               AS items_oldest_seconds
    FROM activities_mailboxitem
    CROSS JOIN LATERAL (SELECT state = 'pending' AS waits, coalesce(due_at <= now(), true) AS due) s
    WHERE state IN ('pending', 'claimed') AND agent_role IS NULL
) i
