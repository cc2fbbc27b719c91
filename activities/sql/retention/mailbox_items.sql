-- Selects mailbox items that ended before the cutoff. An item that an agent received is kept as long as the activity in which it was
-- received, because a retry of this activity may deliver it again, and one that has failed as long as its dead letter is open.
-- Parameters  tenant, before: the cutoff
-- Returns     id of each
SELECT r.id FROM activities_mailboxitem r
WHERE r.tenant_id = %(tenant)s AND r.done_at < %(before)s AND r.state IN ('done', 'failed', 'cancelled')
  AND NOT EXISTS (SELECT FROM activities_activity a WHERE a.tenant_id = r.tenant_id AND a.id = r.activity_id)
  AND NOT EXISTS (SELECT FROM activities_deadletter d WHERE d.tenant_id = r.tenant_id AND d.mailbox_item_id = r.id AND d.state = 'open')
ORDER BY r.done_at
