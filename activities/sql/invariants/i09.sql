-- I09  Every waiting activity has an open item that it waits for, and every open item is needed.
-- awaiting_approval: one open gate. blocked: one unanswered resolution. awaiting_subtask: one unanswered blocking subtask.
-- awaiting_review: an open review, or an open approval that the activity is linked to.
-- Parameters  live: the statuses in which work has not ended
-- Returns     id of each activity that waits for nothing, of each open item that no activity waits for, and of each activity that was
--             cancelled or reassigned although a link to an approval still waits for it
-- A successor of a subtask or resolution answers for it. A subtask that has failed once counts as answered: if it is started
-- again, no activity waits for it. A link to an activity that had ended before its approval was created may still wait.
-- Plan        a full join compares in both directions, and is hashed or merged however few rows the planner expects.
WITH RECURSIVE line AS (
    SELECT id AS first, parent_id AS waiting, link_kind, id, status FROM activities_activity
    WHERE (link_kind = 'resolution' OR link_kind = 'subtask' AND metadata @> '{"blocking": true}')
      AND (status = ANY(%(live)s) OR status IN ('rejected', 'reassigned'))
    UNION ALL
    SELECT line.first, line.waiting, line.link_kind, s.id, s.status
    FROM line JOIN activities_activity s ON s.parent_id = line.id AND s.link_kind IN ('revision_of', 'reassigned_from')
    WHERE line.status IN ('rejected', 'reassigned')
), asked AS (
    SELECT id, parent_id AS waiting,
           CASE link_kind WHEN 'gate' THEN 'awaiting_approval' ELSE 'awaiting_review' END AS status
    FROM activities_activity
    WHERE link_kind IN ('gate', 'review') AND status IN ('created', 'in_progress')
    UNION ALL
    SELECT first, waiting, CASE link_kind WHEN 'resolution' THEN 'blocked' ELSE 'awaiting_subtask' END
    FROM line GROUP BY first, waiting, link_kind
    HAVING bool_or(status = ANY(%(live)s))
       AND NOT bool_or(line.id IN (SELECT activity_id FROM activities_deadletter WHERE activity_id IS NOT NULL))
), held AS (
    SELECT l.activity_id FROM approval_linked_activities l JOIN activities_activity i ON i.id = l.approval_id
    WHERE l.state = 'waiting' AND i.status IN ('created', 'in_progress')
)
SELECT coalesce(asked.id, a.id) AS id
FROM (
    SELECT id, status FROM activities_activity WHERE status IN ('awaiting_approval', 'awaiting_subtask', 'awaiting_review', 'blocked')
) a FULL JOIN (
    SELECT waiting, status, count(*) AS times, min(id::text)::uuid AS id FROM asked GROUP BY waiting, status
) asked ON asked.waiting = a.id AND asked.status = a.status
WHERE a.id IS NULL OR CASE a.status
    WHEN 'awaiting_review' THEN asked.times IS NULL AND a.id NOT IN (SELECT activity_id FROM held)
    ELSE asked.times IS DISTINCT FROM 1 END
UNION
SELECT l.activity_id FROM approval_linked_activities l
JOIN activities_activity a ON a.id = l.activity_id
JOIN activities_activity i ON i.id = l.approval_id
WHERE l.state = 'waiting' AND a.assignee_type = 'agent' AND a.status IN ('cancelled', 'reassigned') AND a.finished_at > i.created_at
