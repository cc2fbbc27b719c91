-- Lists all foreign keys between tables with tenants' rows, as the database's catalogue has them.
-- Returns     child, parent, reference: the tables, and the child's column that refers to the parent's `id`
SELECT child.relname::text AS child, parent.relname::text AS parent, a.attname::text AS reference
FROM pg_constraint k
JOIN pg_class child ON child.oid = k.conrelid
JOIN pg_class parent ON parent.oid = k.confrelid
JOIN LATERAL unnest(k.conkey, k.confkey) AS pair(own, other) ON true
JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = pair.own
JOIN pg_attribute b ON b.attrelid = k.confrelid AND b.attnum = pair.other AND b.attname = 'id'
WHERE k.contype = 'f' AND k.connamespace = current_schema()::regnamespace
  AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = k.conrelid AND attname = 'tenant_id' AND NOT attisdropped)
  AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = k.confrelid AND attname = 'tenant_id' AND NOT attisdropped)
ORDER BY child, reference
