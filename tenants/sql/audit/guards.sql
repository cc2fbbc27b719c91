-- Makes the audit trail append-only. An entry is appended to its chain in the transaction that it records.
-- numbering.sql has the function that numbers and links new entries.

-- Refuses changes by all roles, including the owner of the table. Only `audit_purge` and `audit_forget` may delete.
CREATE FUNCTION audit_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('app.audit_purge', true) = 'on' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the audit trail is only ever added to' USING ERRCODE = 'insufficient_privilege';
END $$;

CREATE TRIGGER audit_append BEFORE INSERT ON tenants_auditentry FOR EACH ROW EXECUTE FUNCTION audit_append();
CREATE TRIGGER audit_refuse BEFORE UPDATE OR DELETE ON tenants_auditentry FOR EACH ROW EXECUTE FUNCTION audit_refuse();
CREATE TRIGGER audit_refuse_truncate BEFORE TRUNCATE ON tenants_auditentry FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse();

-- Deletes the entries of a chain before a time, except its last entry. Returns how many, and the number and hash of the last deleted entry.
CREATE FUNCTION audit_purge(of_chain uuid, before_moment timestamptz, OUT deleted bigint, OUT up_to bigint, OUT last_hash text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(1635083369, hashtext(of_chain::text));
    SELECT e.number, e.hash INTO up_to, last_hash FROM tenants_auditentry e
     WHERE e.chain = of_chain AND e.at < before_moment
       AND e.number < (SELECT max(number) FROM tenants_auditentry WHERE chain = of_chain)
     ORDER BY e.number DESC LIMIT 1;
    PERFORM set_config('app.audit_purge', 'on', true);
    DELETE FROM tenants_auditentry WHERE chain = of_chain AND number <= up_to;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    PERFORM set_config('app.audit_purge', '', true);
END $$;
REVOKE EXECUTE ON FUNCTION audit_purge(uuid, timestamptz) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION audit_purge(uuid, timestamptz) TO orchestrator_system;

-- Deletes the whole chain of an off-boarded tenant. Returns its length and its last number and hash. Never deletes the platform's chain.
CREATE FUNCTION audit_forget(of_chain uuid, OUT deleted bigint, OUT up_to bigint, OUT last_hash text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    IF of_chain = '00000000-0000-0000-0000-000000000000' THEN
        RAISE EXCEPTION 'the chain of the platform stays' USING ERRCODE = 'insufficient_privilege';
    END IF;
    PERFORM pg_advisory_xact_lock(1635083369, hashtext(of_chain::text));
    SELECT e.number, e.hash INTO up_to, last_hash FROM tenants_auditentry e
     WHERE e.chain = of_chain ORDER BY e.number DESC LIMIT 1;
    PERFORM set_config('app.audit_purge', 'on', true);
    DELETE FROM tenants_auditentry WHERE chain = of_chain;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    PERFORM set_config('app.audit_purge', '', true);
END $$;
REVOKE EXECUTE ON FUNCTION audit_forget(uuid) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION audit_forget(uuid) TO orchestrator_system;

REVOKE UPDATE, DELETE, TRUNCATE ON tenants_auditentry FROM orchestrator_app, orchestrator_system;
-- Refused logins and actions of the platform belong to no tenant. All processes may add such entries; only the system role may read them.
CREATE POLICY platform_entries ON tenants_auditentry FOR INSERT WITH CHECK (tenant_id IS NULL);
-- The functions above need this policy if row-level security applies to the owner.
CREATE POLICY of_the_owner ON tenants_auditentry TO CURRENT_USER USING (true) WITH CHECK (true);
