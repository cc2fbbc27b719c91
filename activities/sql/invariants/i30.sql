-- I30  Deadlines act once, in time and in order, and not after the answer.
-- Returns     id of each activity that violates this
-- Answers and the alerts of deadlines are timed by PostgreSQL's clock, so setting that clock back looks like a late alert.
SELECT d.activity_id AS id FROM activities_deadline d WHERE d.happened_at < d.at
UNION
SELECT later.activity_id FROM activities_deadline later
JOIN activities_deadline d ON d.activity_id = later.activity_id AND d.at < later.at AND d.happened_at IS NULL
WHERE later.happened_at IS NOT NULL
UNION
SELECT d.activity_id FROM activities_alert t
JOIN activities_deadline d ON d.tenant_id = t.tenant_id AND 'deadline:' || d.id = t.dedup_key
JOIN activities_activity a ON a.id = d.activity_id
WHERE d.happened_at IS NULL
   OR a.finished_at < t.created_at AND NOT (d.kind = 'due' AND coalesce(a.decided_by, '') = 'deadline')
UNION
SELECT a.id FROM activities_activity a
LEFT JOIN activities_deadline d ON d.activity_id = a.id AND d.kind = 'due' AND d.happened_at IS NOT NULL
WHERE a.status IN ('approved', 'rejected') AND a.assignee_type = 'human' AND a.decided_by = 'deadline'
  AND (d.id IS NULL
    OR a.status IS DISTINCT FROM CASE a.decision_rules ->> 'on_timeout' WHEN 'approve' THEN 'approved' WHEN 'reject' THEN 'rejected' END)
