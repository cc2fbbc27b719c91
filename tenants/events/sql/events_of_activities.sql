-- The trigger that makes events of an activity's history, which `record.sql` attaches, and the bell.
-- A change rings the bell only where somebody follows the tenant's log, and only for the first event that nobody has numbered yet:
-- NOTIFY makes commits wait for each other, so that work nobody follows must not pay for it. Followers look again after each find, and
-- once a second in any case.
-- Plan        LIMIT and OFFSET keep the planner from joining: it cannot know how many rows there will be, and each is to be found by its key.

CREATE OR REPLACE FUNCTION events_ring(of_tenant uuid) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('orchestrator_events', log.tenant_id::text)
    FROM tenants_eventlog log
    WHERE log.tenant_id = of_tenant AND log.listened_until > now()
      -- Asked only where somebody follows.
      AND (SELECT fresh.id FROM tenants_freshevent fresh WHERE fresh.tenant_id = log.tenant_id LIMIT 1) IS NULL;
$$;

CREATE OR REPLACE FUNCTION events_of_activities() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Asked here first, since on most ways through nobody follows, and the call of a function costs more than the question.
    IF EXISTS (SELECT FROM tenants_eventlog log WHERE log.tenant_id IN (SELECT tenant_id FROM added) AND log.listened_until > now()) THEN
        PERFORM events_ring(tenant_id) FROM (SELECT DISTINCT tenant_id FROM added) concerned;
    END IF;
    INSERT INTO tenants_freshevent (tenant_id, kind, at, activity_id, pipeline_run_id, data)
    SELECT e.tenant_id, made.kind, e.at, e.activity_id, a.pipeline_run_id, jsonb_strip_nulls(jsonb_build_object(
               'status', e.target, 'previous_status', e.source, 'agent_role', a.agent_role, 'human_role', a.human_role,
               'parent', a.parent_id, 'link_kind', a.link_kind, 'step', a.step, 'schedule', a.schedule_id,
               'deliverable', a.deliverable_id, 'run', e.run_id,
               'attempts', CASE WHEN e.target = 'failed' THEN a.attempts END,
               -- Agents choose it as well. What is no name is text, and texts are in no event.
               'error_code', CASE WHEN e.target = 'failed' THEN substring(a.error ->> 'code' FROM '^[a-z][a-z0-9_]{0,39}$') END))
    FROM added e
    CROSS JOIN LATERAL (
        SELECT pipeline_run_id, agent_role, human_role, parent_id, link_kind, step, schedule_id, deliverable_id, assignee_type, is_approval_gate,
               attempts, error
        FROM activities_activity WHERE id = e.activity_id OFFSET 0
    ) a
    CROSS JOIN LATERAL (
        SELECT 0 AS place, CASE
            WHEN e.verb = 'submit' THEN 'activity.created'
            WHEN e.source = e.target THEN 'activity.rescheduled'
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
