-- Locks the mark of the counters and returns what can be counted. Creates the mark if it is missing; then the whole history is counted.
-- Returns     counted, seen, barrier; over: whether all transactions before the barrier have ended; newest: the newest visible event;
--             transaction: the id of this one, which is above those of all that had begun to write when `newest` became visible;
--             stale: whether the mark's time should be renewed. Nothing if another transaction holds the lock.
-- A barrier above this transaction's id was written by another cluster, before a restore. It counts as over.
WITH made AS (
    INSERT INTO activities_countingmark (id, counted, seen, barrier) SELECT 1, 0, 0, 0
    WHERE NOT EXISTS (SELECT FROM activities_countingmark) ON CONFLICT DO NOTHING
    RETURNING counted, seen, barrier, at
), held AS (
    SELECT counted, seen, barrier, at FROM activities_countingmark FOR UPDATE SKIP LOCKED
)
SELECT m.counted, m.seen, m.barrier, m.barrier <= now.oldest OR m.barrier > now.own AS over,
       coalesce((SELECT max(id) FROM activities_activityevent), 0) AS newest, now.own AS transaction,
       m.at < clock_timestamp() - interval '15 seconds' AS stale
FROM (SELECT * FROM made UNION ALL SELECT * FROM held) m,
     -- The lock gives this transaction its id, after the snapshot was taken.
     (SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS oldest, pg_current_xact_id()::text::bigint AS own) now
