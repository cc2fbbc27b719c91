jsonb_build_object(
    'id', entry.id, 'chain', entry.chain, 'number', entry.number, 'tenant', entry.tenant_id,
    'at', to_char(entry.at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
    'actor', jsonb_build_array(entry.actor_kind, entry.actor_id, entry.actor_name),
    'operation', entry.operation, 'outcome', entry.outcome,
    'object', jsonb_build_array(entry.object_kind, entry.object_id),
    'changes', entry.changes, 'detail', entry.detail,
    'request', jsonb_build_array(entry.request_id, entry.ip), 'break_glass', entry.break_glass_id
)::text
