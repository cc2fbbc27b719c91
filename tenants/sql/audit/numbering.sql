-- Assigns the number of a new entry and links it to its chain. A transaction locks each chain to which it appends until it ends, so entries
-- should be appended last. The function runs as the owner of the table, because processes may not read the platform's entries.
-- A hash covers the text of the expression in content.sql, which is inserted below. `verify_audit` computes the same hashes independently.

CREATE OR REPLACE FUNCTION audit_append() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    entry tenants_auditentry := NEW;
    before record;
BEGIN
    entry.chain := coalesce(entry.tenant_id, '00000000-0000-0000-0000-000000000000');
    PERFORM pg_advisory_xact_lock(1635083369, hashtext(entry.chain::text));
    SELECT number, hash INTO before FROM tenants_auditentry WHERE chain = entry.chain ORDER BY number DESC LIMIT 1;
    -- The chain of an off-boarded tenant was deleted, and a late request of a token that is still cached begins no new one.
    IF before.number IS NULL AND EXISTS (SELECT FROM tenants_departedtenant WHERE id = entry.chain) THEN
        RETURN NULL;
    END IF;
    entry.number := coalesce(before.number, 0) + 1;
    entry.previous_hash := coalesce(before.hash, repeat('0', 64));
    entry.at := clock_timestamp();  -- ascends with the number; the start of the transaction does not
    entry.hash := encode(sha256(convert_to(entry.previous_hash || {content}, 'UTF8')), 'hex');
    RETURN entry;
END $$;
