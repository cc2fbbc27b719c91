-- Creates triggers that record events in the transaction of a change, so that the application needs no extra statements.

CREATE FUNCTION events_note(of_tenant uuid, of_kind text, of_activity uuid, of_run uuid, event_data jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM events_ring(of_tenant);
    INSERT INTO tenants_freshevent (tenant_id, kind, at, activity_id, pipeline_run_id, data)
    VALUES (of_tenant, of_kind, clock_timestamp(), of_activity, of_run, jsonb_strip_nulls(event_data));
END $$;

CREATE FUNCTION events_of_pipeline_runs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM events_note(NEW.tenant_id, 'pipeline_run.' || CASE
        WHEN TG_OP = 'INSERT' THEN 'started' WHEN NEW.status = 'running' THEN 'resumed' ELSE NEW.status END, NULL, NEW.id,
        jsonb_build_object('status', NEW.status, 'schedule', NEW.schedule_id, 'deliverable', NEW.deliverable_id));
    RETURN NULL;
END $$;

CREATE FUNCTION events_of_firings() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM events_note(NEW.tenant_id, CASE WHEN NEW.state = 'skipped' THEN 'schedule.skipped' ELSE 'schedule.fired' END, NULL, NULL,
        jsonb_build_object('schedule', NEW.schedule_id, 'status', NEW.state, 'nominal_at', NEW.nominal_at));
    RETURN NULL;
END $$;

CREATE FUNCTION events_of_alerts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM events_note(NEW.tenant_id, 'alert.raised', NEW.activity_id, NULL,
        jsonb_build_object('alert', NEW.id, 'alert_kind', NEW.kind, 'severity', NEW.severity));
    RETURN NULL;
END $$;

CREATE FUNCTION events_of_dead_letters() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM events_note(NEW.tenant_id, 'dead_letter', NEW.activity_id, NEW.pipeline_run_id,
        jsonb_build_object('dead_letter', NEW.id, 'agent_role', NEW.agent_role, 'reason', NEW.reason));
    RETURN NULL;
END $$;

CREATE FUNCTION events_of_budgets() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM events_note(NEW.tenant_id, TG_ARGV[0], NULL, NULL, jsonb_build_object('budget', NEW.id, 'period_start', NEW.period_start));
    RETURN NULL;
END $$;

CREATE TRIGGER events AFTER INSERT ON activities_activityevent REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION events_of_activities();
CREATE TRIGGER events_inserted AFTER INSERT ON pipelines_pipelinerun FOR EACH ROW EXECUTE FUNCTION events_of_pipeline_runs();
CREATE TRIGGER events_updated AFTER UPDATE OF status ON pipelines_pipelinerun FOR EACH ROW
    WHEN (NEW.status IS DISTINCT FROM OLD.status) EXECUTE FUNCTION events_of_pipeline_runs();
CREATE TRIGGER events AFTER INSERT ON pipelines_firing FOR EACH ROW EXECUTE FUNCTION events_of_firings();
CREATE TRIGGER events AFTER INSERT ON activities_alert FOR EACH ROW EXECUTE FUNCTION events_of_alerts();
CREATE TRIGGER events AFTER INSERT ON activities_deadletter FOR EACH ROW EXECUTE FUNCTION events_of_dead_letters();
CREATE TRIGGER events_warned AFTER UPDATE OF warned_at ON tenants_budget FOR EACH ROW
    WHEN (NEW.warned_at IS NOT NULL AND NEW.warned_at IS DISTINCT FROM OLD.warned_at)
    EXECUTE FUNCTION events_of_budgets('budget.warning');
CREATE TRIGGER events_exceeded AFTER UPDATE OF waiting_since ON tenants_budget FOR EACH ROW
    WHEN (NEW.waiting_since IS NOT NULL AND OLD.waiting_since IS NULL)
    EXECUTE FUNCTION events_of_budgets('budget.exceeded');
