-- Batches of model providers that ended long ago, with their items, but for those of which an activity goes on: it may go on with what
-- its item has begun.
-- Parameters  tenant, before
-- Returns     id of each
SELECT r.id FROM activities_providerbatch r
WHERE r.tenant_id = %(tenant)s AND r.ended_at < %(before)s
  AND NOT EXISTS (SELECT FROM activities_batchitem i JOIN activities_activity a ON a.tenant_id = i.tenant_id AND a.id = i.activity_id
                  WHERE i.tenant_id = r.tenant_id AND i.batch_id = r.id AND a.finished_at IS NULL)
ORDER BY r.ended_at
