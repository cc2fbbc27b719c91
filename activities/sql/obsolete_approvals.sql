-- Finds open approvals about activities that have all ended, at least one of them after the approval was requested.
-- Parameters  ended: final statuses; after: the last id of the page before; most: the maximum number of rows
-- Returns     id, tenant_id; oldest first
-- An approval that was requested about ended activities only is a question about their results, and is not returned.
-- Plan        OFFSET 0 keeps each EXISTS a lookup by key for one approval, and the first stops at the first activity that has not ended.
SELECT a.id, a.tenant_id FROM activities_activity a
WHERE a.assignee_type = 'human' AND a.indexed_status = 'open' AND a.link_kind = 'approval' AND a.id > %(after)s
  AND NOT EXISTS (
      SELECT FROM approval_linked_activities l JOIN activities_activity w ON w.id = l.activity_id
      WHERE l.approval_id = a.id AND l.state = 'waiting' AND w.status <> ALL(%(ended)s::text[]) OFFSET 0)
  AND EXISTS (
      SELECT FROM approval_linked_activities l JOIN activities_activity w ON w.id = l.activity_id
      WHERE l.approval_id = a.id AND l.state = 'waiting' AND w.finished_at > a.created_at OFFSET 0)
ORDER BY a.id LIMIT %(most)s
