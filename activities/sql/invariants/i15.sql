-- I15  Each decision counts once, and reaches all activities that waited for it.
-- A decided activity names who decided, and when. A gate and the activity behind it have the same decision by the same person. If several
-- must agree, enough have voted so, each of them once, and the requester only if permitted. No link waits for a closed approval, and an
-- activity that an approval has woken has one wake from it, and perhaps one more for each time it was retried after it had failed.
-- Returns     id of each activity that violates this
-- Plan        one pass over the activities; the other conditions read only those that people decide.
WITH item AS MATERIALIZED (
    SELECT id, parent_id, link_kind, assignee_type, status, decided_by, decided_at, chosen_option, decision_rules
    FROM activities_activity
    WHERE status IN ('approved', 'rejected') OR decision_rules IS NOT NULL OR link_kind = 'approval'
), ballot AS (
    SELECT i.id, i.status, i.decided_by, coalesce((i.decision_rules ->> 'quorum')::int, 1) AS quorum,
           (i.decision_rules ->> 'voters')::int AS voters, v.approvals, v.rejections
    FROM item i LEFT JOIN (
        SELECT activity_id, count(*) FILTER (WHERE decision = 'approve') AS approvals, count(*) FILTER (WHERE decision = 'reject') AS rejections
        FROM activities_vote GROUP BY activity_id
    ) v ON v.activity_id = i.id
    WHERE i.assignee_type = 'human' AND (i.decision_rules ->> 'quorum')::int > 1
)
SELECT id FROM item WHERE status IN ('approved', 'rejected') AND (decided_by IS NULL OR decided_at IS NULL)
UNION
SELECT a.id FROM item a
LEFT JOIN item g ON g.parent_id = a.id AND g.link_kind = 'gate' AND g.status = a.status AND g.decided_by = a.decided_by
     AND g.chosen_option IS NOT DISTINCT FROM a.chosen_option
WHERE a.assignee_type = 'agent' AND a.status IN ('approved', 'rejected')
GROUP BY a.id HAVING count(g.id) <> 1
UNION
SELECT g.id FROM item g LEFT JOIN item a ON a.id = g.parent_id
WHERE g.link_kind = 'gate' AND g.status IN ('approved', 'rejected') AND a.status IS DISTINCT FROM g.status
UNION
SELECT id FROM ballot
WHERE decided_by IS DISTINCT FROM 'deadline' AND CASE status
    WHEN 'approved' THEN coalesce(approvals, 0) < quorum
    WHEN 'rejected' THEN coalesce(rejections, 0) < coalesce(voters - quorum + 1, quorum)
    WHEN 'cancelled' THEN false
    ELSE approvals >= quorum OR rejections >= coalesce(voters - quorum + 1, quorum) END
UNION
SELECT activity_id FROM activities_vote GROUP BY activity_id HAVING count(*) > count(DISTINCT voter)
UNION
SELECT v.activity_id FROM activities_vote v
JOIN item i ON i.id = v.activity_id AND i.decision_rules @> '{"self_approval": false}' AND i.decision_rules ->> 'asked_by' = v.voter
UNION
SELECT coalesce(p.id, i.id) FROM activities_approval p
FULL JOIN (SELECT id FROM item WHERE link_kind = 'approval') i ON i.id = p.id
WHERE p.id IS NULL OR i.id IS NULL
UNION
SELECT l.activity_id FROM approval_linked_activities l JOIN item i ON i.id = l.approval_id AND i.link_kind = 'approval'
WHERE CASE WHEN i.status IN ('created', 'in_progress') THEN l.state = 'woken' ELSE l.state = 'waiting' END
UNION
SELECT l.activity_id FROM approval_linked_activities l LEFT JOIN activities_wake w
    ON w.activity_id = l.activity_id AND w.payload ->> 'approval' = l.approval_id::text
WHERE l.state = 'woken'
GROUP BY l.approval_id, l.activity_id HAVING count(w.id) <> 1 AND (
    count(w.id) = 0 OR count(w.id) > 1 + (SELECT count(*) FROM activities_activityevent e WHERE e.activity_id = l.activity_id AND e.verb = 'retry'))
