-- I08  Every activity that is ready, or held before its start, has a pending wake.
-- This is about activities of agents. One that is held before its start needs the wake because it will become ready again.
-- Returns     id of each activity that nothing would ever start
SELECT a.id FROM activities_activity a
WHERE a.status = 'created' AND a.assignee_type = 'agent' AND NOT EXISTS (
    SELECT FROM activities_wake w WHERE w.activity_id = a.id AND w.state = 'pending')
UNION
SELECT a.id FROM activities_activity a
JOIN activities_activityevent e ON e.activity_id = a.id AND e.seq = a.version AND e.verb = 'hold'
WHERE a.status = 'awaiting_review' AND NOT EXISTS (
    SELECT FROM activities_wake w WHERE w.activity_id = a.id AND w.state = 'pending')
