-- Appends an entry to its chain. The table's trigger assigns its number and computes its hash.
-- Parameters  id, tenant_id (null: the platform's chain), actor_kind, actor_id, actor_name, operation, outcome, object_kind, object_id,
--             changes and detail (JSON as text), request_id, ip, break_glass_id
-- Returns     nothing, because processes may append to the platform's chain but not read it
INSERT INTO tenants_auditentry (id, tenant_id, chain, number, at, actor_kind, actor_id, actor_name, operation, outcome, object_kind,
    object_id, changes, detail, request_id, ip, break_glass_id, previous_hash, hash)
VALUES (%(id)s, %(tenant_id)s, %(id)s, 0, now(), %(actor_kind)s, %(actor_id)s, %(actor_name)s, %(operation)s, %(outcome)s,
    %(object_kind)s, %(object_id)s, %(changes)s::jsonb, %(detail)s::jsonb, %(request_id)s, %(ip)s, %(break_glass_id)s, '', '')
