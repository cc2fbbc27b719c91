-- I06  Fencing numbers only grow.
-- Each claim of an activity has a higher number than the claim before it in the history, and no run has a higher number than its activity.
-- Returns     id of each activity that violates this
SELECT DISTINCT activity_id AS id FROM (
    SELECT r.activity_id, r.fence, lag(r.fence) OVER (PARTITION BY r.activity_id ORDER BY e.seq) AS before
    FROM activities_activityevent e JOIN activities_activityrun r ON r.id = e.run_id
    WHERE e.verb = 'claim' OR e.verb = 'start' AND e.source = 'created'
) claim
WHERE before >= fence
UNION
SELECT a.id FROM activities_activity a JOIN activities_activityrun r ON r.activity_id = a.id AND r.fence > a.fence
