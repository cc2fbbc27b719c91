-- I08  Nothing is ready and forgotten: an agent's activity that may be claimed has a wake that asks for it, and so has one that
--      was held before it had started, since it will be ready again.
-- Returns     id of each activity that nothing would ever start
SELECT a.id FROM activities_activity a
WHERE a.status = 'created' AND a.assignee_type = 'agent' AND NOT EXISTS (
    SELECT FROM activities_wake w WHERE w.activity_id = a.id AND w.state = 'pending')
UNION
SELECT a.id FROM activities_activity a
JOIN activities_activityevent e ON e.activity_id = a.id AND e.seq = a.version AND e.verb = 'hold'
WHERE a.status = 'awaiting_review' AND NOT EXISTS (
    SELECT FROM activities_wake w WHERE w.activity_id = a.id AND w.state = 'pending')
