-- I20  Row-level security is forced on every tenant's table.
-- It applies to reading and writing, and the database role of the processes can neither bypass it nor switch it off.
-- Parameters  tables: the names of these tables
-- Returns     id: the name of each table or role that violates this
SELECT c.relname::text AS id FROM pg_class c
WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p')
  AND (c.relname = ANY(%(tables)s) OR EXISTS (
    SELECT FROM pg_attribute WHERE attrelid = c.oid AND attname = 'tenant_id' AND NOT attisdropped))
  AND (NOT c.relrowsecurity OR NOT c.relforcerowsecurity
    OR NOT EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND p.polwithcheck IS NOT NULL)
    OR pg_has_role('orchestrator_app', c.relowner, 'USAGE'))
UNION
SELECT name FROM unnest(%(tables)s) AS wanted(name)
WHERE to_regclass(quote_ident(name)) IS NULL
UNION
SELECT rolname::text FROM pg_roles WHERE rolname = 'orchestrator_app' AND (rolsuper OR rolbypassrls)
