-- Batches that consumers took from mailboxes and that ended long ago, but for those whose items go on.
-- Parameters  tenant, before
-- Returns     id of each
SELECT r.id FROM activities_mailboxbatch r
WHERE r.tenant_id = %(tenant)s AND r.ended_at < %(before)s
  AND NOT EXISTS (SELECT FROM activities_mailboxitem i
                  WHERE i.tenant_id = r.tenant_id AND i.batch_id = r.id AND i.state IN ('pending', 'claimed'))
ORDER BY r.ended_at
