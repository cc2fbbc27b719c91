-- Creates the function that retention/forget_usage.sql calls: it deletes old ledger entries and adds them to the monthly totals.
-- It runs as the owner of the tables. Row-level security applies to the owner too, so it sees only rows of the transaction's tenant.
-- It looks at the caller's temporary tables last, as every function of the owner.
-- Returns     nothing; the created function returns the number of deleted entries
CREATE FUNCTION tenants_forget_usage(of_tenant uuid, before date, most integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    deleted bigint;
BEGIN
    IF of_tenant IS DISTINCT FROM nullif(current_setting('app.tenant_id', true), '')::uuid THEN
        RAISE insufficient_privilege USING MESSAGE = 'the ledger of another tenant';
    END IF;
    WITH old AS (
        SELECT r.id FROM tenants_usageentry r
        WHERE r.tenant_id = of_tenant AND r.day < before
          AND r.day < (SELECT coalesce(min(b.period_start), 'infinity') FROM tenants_budget b
                       WHERE b.tenant_id = of_tenant AND b.deleted_at IS NULL)
          AND NOT EXISTS (SELECT FROM activities_activityrun run WHERE run.tenant_id = of_tenant AND run.id = r.run_id)
        ORDER BY r.day LIMIT most FOR UPDATE OF r SKIP LOCKED
    ), removed_entries AS (
        DELETE FROM tenants_usageentry e USING old WHERE e.id = old.id RETURNING e.*
    ), totals AS (
        INSERT INTO tenants_usagetotal AS t
            (tenant_id, month, agent_role, deliverable_id, model, input_tokens, output_tokens, dollars, runs, entries)
        SELECT of_tenant, date_trunc('month', day)::date, agent_role, deliverable_id, model,
               sum(input_tokens), sum(output_tokens), sum(dollars), sum(runs), count(*)
        FROM removed_entries GROUP BY 2, 3, 4, 5
        ON CONFLICT (tenant_id, month, agent_role, deliverable_id, model) DO UPDATE SET
            input_tokens = t.input_tokens + excluded.input_tokens, output_tokens = t.output_tokens + excluded.output_tokens,
            dollars = t.dollars + excluded.dollars, runs = t.runs + excluded.runs, entries = t.entries + excluded.entries
    )
    SELECT count(*) INTO deleted FROM removed_entries;
    RETURN deleted;
END $$;
REVOKE ALL ON FUNCTION tenants_forget_usage(uuid, date, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tenants_forget_usage(uuid, date, integer) TO orchestrator_app, orchestrator_system;
