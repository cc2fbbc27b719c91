-- What was said in mailboxes and has come to its end long ago. What an agent was told stays as long as the work in which it heard of it,
-- as a retry of that takes it up again.
-- Parameters  tenant, before
-- Returns     id of each
SELECT r.id FROM activities_mailboxitem r
WHERE r.tenant_id = %(tenant)s AND r.done_at < %(before)s AND r.state IN ('done', 'failed', 'cancelled')
  AND NOT EXISTS (SELECT FROM activities_activity a WHERE a.tenant_id = r.tenant_id AND a.id = r.activity_id)
ORDER BY r.done_at
