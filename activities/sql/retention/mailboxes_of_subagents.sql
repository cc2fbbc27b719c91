-- Selects old, empty mailboxes of subagents that are deleted, as are all activities of these mailboxes. Nobody else knows their keys.
-- Parameters  tenant, before: the cutoff
-- Returns     id of each
SELECT r.id FROM activities_mailbox r
WHERE r.tenant_id = %(tenant)s AND r.created_at < %(before)s AND starts_with(r.key, 'subagent:')
  AND NOT EXISTS (SELECT FROM activities_subagent s WHERE s.tenant_id = r.tenant_id AND s.conversation_id = r.id)
  AND NOT EXISTS (SELECT FROM activities_activity a WHERE a.tenant_id = r.tenant_id AND a.mailbox_id = r.id)
  AND NOT EXISTS (SELECT FROM activities_mailboxitem i WHERE i.tenant_id = r.tenant_id AND i.mailbox_id = r.id)
ORDER BY r.created_at
