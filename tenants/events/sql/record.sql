-- Triggers that write events in the transaction of the change, so that no statement of the application is added for them.
-- A change rings the bell only where somebody follows the tenant's log, and only for the first event that nobody has numbered yet:
-- NOTIFY makes commits wait for each other, so that work nobody follows must not pay for it. Followers look again after each find, and
-- once a second in any case.

CREATE FUNCTION events_ring(of_tenant uuid) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('orchestrator_events', log.tenant_id::text)
    FROM tenants_eventlog log
    WHERE log.tenant_id = of_tenant AND log.listened_until > now()
      AND NOT EXISTS (SELECT FROM tenants_freshevent fresh WHERE fresh.tenant_id = of_tenant);
$$;

CREATE FUNCTION events_note(of_tenant uuid, of_kind text, of_activity uuid, of_run uuid, told jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM events_ring(of_tenant);
    INSERT INTO tenants_freshevent (tenant_id, kind, at, activity_id, pipeline_run_id, data)
    VALUES (of_tenant, of_kind, clock_timestamp(), of_activity, of_run, jsonb_strip_nulls(told));
END $$;

CREATE FUNCTION events_of_activities() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Asked here first, since on most ways through nobody follows, and the call of a function costs more than the question.
    IF EXISTS (SELECT FROM tenants_eventlog log WHERE log.tenant_id IN (SELECT tenant_id FROM added) AND log.listened_until > now()) THEN
        PERFORM events_ring(tenant_id) FROM (SELECT DISTINCT tenant_id FROM added) concerned;
    END IF;
    INSERT INTO tenants_freshevent (tenant_id, kind, at, activity_id, pipeline_run_id, data)
    SELECT e.tenant_id, made.kind, e.at, e.activity_id, a.pipeline_run_id, jsonb_strip_nulls(jsonb_build_object(
               'status', e.target, 'previous_status', e.source, 'agent_role', a.agent_role, 'human_role', a.human_role,
               'parent', a.parent_id, 'link_kind', a.link_kind, 'step', a.step, 'schedule', a.schedule_id,
               'deliverable', a.deliverable_id, 'run', e.run_id))
    FROM added e
    JOIN activities_activity a ON a.tenant_id = e.tenant_id AND a.id = e.activity_id
    CROSS JOIN LATERAL (
        SELECT 0 AS place, CASE
            WHEN e.verb = 'submit' THEN 'activity.created'
            WHEN e.target = 'in_progress' THEN 'activity.started'
            WHEN e.target = 'done' THEN 'activity.completed'
            WHEN e.target = 'created' THEN 'activity.released'
            WHEN e.target IN ('awaiting_approval', 'awaiting_subtask', 'awaiting_review', 'blocked') THEN 'activity.waiting'
            ELSE 'activity.' || e.target END AS kind
        UNION ALL
        SELECT 1, CASE WHEN e.verb = 'submit' THEN 'approval.requested' WHEN e.target = 'cancelled' THEN 'approval.withdrawn'
                       ELSE 'approval.decided' END
        WHERE a.assignee_type = 'human' AND (a.is_approval_gate OR a.link_kind IN ('gate', 'review', 'approval'))
          AND (e.verb = 'submit' OR e.target IN ('approved', 'rejected', 'cancelled', 'done'))
    ) made
    ORDER BY e.at, e.activity_id, e.seq, made.place;
    RETURN NULL;
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
