-- I01  An activity has one live run while an agent has it, and none otherwise.
-- The live run has the fencing number of the activity.
-- Parameters  running: the statuses in which an agent has it
-- Returns     id of each activity that violates this
SELECT activity_id AS id FROM activities_activityrun WHERE status = 'running' GROUP BY activity_id HAVING count(*) > 1
UNION
SELECT a.id FROM activities_activity a
WHERE a.status = ANY(%(running)s) AND a.assignee_type = 'agent' AND NOT EXISTS (
    SELECT FROM activities_activityrun r WHERE r.activity_id = a.id AND r.status = 'running' AND r.fence = a.fence)
UNION
SELECT r.activity_id FROM activities_activityrun r JOIN activities_activity a ON a.id = r.activity_id
WHERE r.status = 'running' AND NOT (a.status = ANY(%(running)s) AND a.assignee_type = 'agent')
