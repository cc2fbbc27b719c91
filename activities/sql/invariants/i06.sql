-- I06  Each claim of an activity has a higher fencing number than the claim before it, and none is above the activity's.
--      The order is that of the history, not of a clock.
-- Returns     id of each activity for which that is not so
SELECT DISTINCT activity_id AS id FROM (
    SELECT r.activity_id, r.fence, lag(r.fence) OVER (PARTITION BY r.activity_id ORDER BY e.seq) AS before
    FROM activities_activityevent e JOIN activities_activityrun r ON r.id = e.run_id
    WHERE e.verb = 'claim' OR e.verb = 'start' AND e.source = 'created'
) claim
WHERE before >= fence
UNION
SELECT a.id FROM activities_activity a JOIN activities_activityrun r ON r.activity_id = a.id AND r.fence > a.fence
