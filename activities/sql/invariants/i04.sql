-- I04  The history of an activity is unbroken and ends in its status.
-- It has no gap, each move begins where the one before ended, and the last one has the activity's status and version. A start from
-- `created` counts as two events, because it also represents its claim.
-- Returns     id of each activity that violates this
SELECT a.id FROM activities_activity a LEFT JOIN (
    SELECT activity_id, sum(places) AS events, max(seq) AS last_seq, max(target) FILTER (WHERE is_last) AS last_target,
           bool_or(source IS DISTINCT FROM previous) AS broken
    FROM (
        SELECT activity_id, seq, source, target, lag(target) OVER history AS previous,
               CASE WHEN verb = 'start' AND source = 'created' THEN 2 ELSE 1 END AS places,
               lead(seq) OVER history IS NULL AS is_last
        FROM activities_activityevent WINDOW history AS (PARTITION BY activity_id ORDER BY seq)
    ) event
    GROUP BY activity_id
) h ON h.activity_id = a.id
WHERE h.events IS NULL OR h.broken OR h.events <> h.last_seq OR h.last_seq <> a.version OR h.last_target <> a.status
