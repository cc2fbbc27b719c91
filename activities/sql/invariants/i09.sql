-- I09  What waits has somebody to wait for, and nobody is asked for the sake of something that does not wait.
--      awaiting_approval: one open gate. blocked: one open resolution. awaiting_subtask: one blocking subtask that has not answered yet.
--      awaiting_review: an open review, or an open approval that it is linked to.
-- Parameters  live: the statuses in which work has not ended
-- Returns     id of each activity that waits in vain, or of what is asked in vain
-- What takes the place of a subtask (a revision, an heir) answers for it. A subtask that has failed once has answered; started again,
-- it works for nobody.
-- Plan        a full join looks both ways, and is hashed or merged however few rows the planner expects.
WITH RECURSIVE line AS (
    SELECT id AS subtask, parent_id AS waiting, id, status FROM activities_activity
    WHERE link_kind = 'subtask' AND metadata @> '{"blocking": true}'
      AND (status = ANY(%(live)s) OR status IN ('rejected', 'reassigned'))
    UNION ALL
    SELECT line.subtask, line.waiting, s.id, s.status
    FROM line JOIN activities_activity s ON s.parent_id = line.id AND s.link_kind IN ('revision_of', 'reassigned_from')
    WHERE line.status IN ('rejected', 'reassigned')
), asked AS (
    SELECT id, parent_id AS waiting,
           CASE link_kind WHEN 'gate' THEN 'awaiting_approval' WHEN 'resolution' THEN 'blocked' ELSE 'awaiting_review' END AS status
    FROM activities_activity
    WHERE link_kind IN ('gate', 'resolution', 'review') AND status IN ('created', 'in_progress')
    UNION ALL
    SELECT subtask, waiting, 'awaiting_subtask' FROM line GROUP BY subtask, waiting
    HAVING bool_or(status = ANY(%(live)s))
       AND NOT bool_or(line.id IN (SELECT activity_id FROM activities_deadletter))
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
SELECT l.activity_id FROM approval_linked_activities l JOIN activities_activity a ON a.id = l.activity_id
WHERE l.state = 'waiting' AND a.status IN ('cancelled', 'reassigned')
