-- Creates triggers that record whose configuration a transaction changes, for `tenants.caches`.
-- Arguments of a trigger: the column with the tenant's id, empty if a row concerns all tenants; then columns that are not configuration.
-- The function runs as the owner of the tables, because other roles may not write these records. It deletes records that are a day old.
CREATE FUNCTION tenants_note_configuration() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    whose uuid;
    before jsonb := CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) - TG_ARGV[1:] END;
    after jsonb := CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) - TG_ARGV[1:] END;
BEGIN
    IF before IS DISTINCT FROM after THEN
        IF TG_OP = 'DELETE' AND TG_TABLE_NAME = 'tenants_tenant' THEN
            -- No row may remain of a deleted tenant, so its deletion is recorded as a change for all tenants.
            DELETE FROM tenants_configurationchange WHERE concerns = OLD.id;
        ELSE
            whose := coalesce(after, before) ->> TG_ARGV[0];
        END IF;
        INSERT INTO tenants_configurationchange (transaction, concerns) VALUES (pg_current_xact_id()::text::bigint, whose)
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            DELETE FROM tenants_configurationchange
            WHERE noted_at < clock_timestamp() - interval '1 day' AND id = ANY(ARRAY(
                SELECT id FROM tenants_configurationchange ORDER BY id LIMIT 20 FOR UPDATE SKIP LOCKED));
        END IF;
    END IF;
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION tenants_note_configuration() FROM PUBLIC;
REVOKE INSERT, UPDATE, DELETE ON tenants_configurationchange FROM orchestrator_app, orchestrator_system;

CREATE TRIGGER configuration AFTER INSERT OR UPDATE OR DELETE ON tenants_tenant
    FOR EACH ROW EXECUTE FUNCTION tenants_note_configuration('id');
CREATE TRIGGER configuration AFTER INSERT OR UPDATE OR DELETE ON tenants_plan
    FOR EACH ROW EXECUTE FUNCTION tenants_note_configuration('');
CREATE TRIGGER configuration AFTER INSERT OR UPDATE OR DELETE ON tenants_pause
    FOR EACH ROW EXECUTE FUNCTION tenants_note_configuration('tenant_id');
-- The spent and reserved amounts of a budget change with every run and are not configuration.
CREATE TRIGGER configuration AFTER INSERT OR DELETE ON tenants_budget
    FOR EACH ROW EXECUTE FUNCTION tenants_note_configuration('tenant_id');
CREATE TRIGGER configuration_updated AFTER UPDATE OF agent_role, deleted_at ON tenants_budget FOR EACH ROW
    WHEN (NEW.agent_role IS DISTINCT FROM OLD.agent_role OR NEW.deleted_at IS DISTINCT FROM OLD.deleted_at)
    EXECUTE FUNCTION tenants_note_configuration('tenant_id');
