-- Counts open activities of people by kind, and their items in the inbox, where escalations of similar failures are one item.
-- Returns     kind (approval, review, resolution, escalation or task), waiting, items, oldest_seconds
SELECT CASE WHEN is_approval_gate THEN 'approval' WHEN link_kind IN ('review', 'resolution', 'escalation') THEN link_kind
            ELSE 'task' END AS kind,
       count(*) AS waiting,
       count(*) - count(*) FILTER (WHERE link_kind = 'escalation' AND metadata ? 'fingerprint')
           + count(DISTINCT (tenant_id, human_role, metadata ->> 'fingerprint'))
               FILTER (WHERE link_kind = 'escalation' AND metadata ? 'fingerprint') AS items,
       extract(epoch FROM clock_timestamp() - min(created_at))::float AS oldest_seconds
FROM activities_activity
WHERE assignee_type = 'human' AND indexed_status = 'open' AND status IN ('created', 'in_progress')
GROUP BY kind
