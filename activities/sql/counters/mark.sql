-- Locks the mark of the counters and tells what can be counted. Makes it when it is missing; then the whole history is counted.
-- Returns     counted, seen, barrier; over: whether all transactions before the barrier are; newest: the newest event that is visible;
--             transaction: the id of this one, which is above those of all that had begun to write when `newest` became visible;
--             stale: the mark's time should be renewed. Nothing when somebody else holds the lock.
-- A barrier above this transaction's id is from another cluster, before a restore, and says nothing.
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
