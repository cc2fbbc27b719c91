-- Numbers the oldest fresh events of a tenant, and creates a delivery for each webhook that selects them. The caller's transaction must
-- hold the lock of the tenant's log.
-- Parameters  tenant; last: the last assigned number; limit: maximum of fresh rows. A row holds the events of one statement for at most 16
--             activities.
-- Returns     taken: number of fresh rows; numbered: number of events
-- Guarantee   An event gets one number, and at most one delivery per webhook. Events that commit later get higher numbers.
--             The content of events comes from the history, but the role, pipeline and so on are the current ones of the activity.
--             Events of activities that have been deleted since get no numbers.
-- Plan        ARRAY and OFFSET 0 keep the planner from joins: it cannot estimate the number of rows, and each row must be found by key.
WITH taken AS (
    DELETE FROM tenants_freshevent
    WHERE tenant_id = %(tenant)s AND id = ANY(ARRAY(SELECT id FROM tenants_freshevent WHERE tenant_id = %(tenant)s ORDER BY tenant_id, id LIMIT %(limit)s))
    RETURNING *
), of_activities AS (
    SELECT t.id, history.nth, e.seq, made.place, made.kind, e.at, e.activity_id, a.pipeline_run_id, jsonb_strip_nulls(jsonb_build_object(
               'status', e.target, 'previous_status', e.source, 'agent_role', a.agent_role, 'human_role', a.human_role,
               'parent', a.parent_id, 'link_kind', a.link_kind, 'step', a.step, 'schedule', a.schedule_id,
               'deliverable', a.deliverable_id, 'run', e.run_id,
               'attempts', CASE WHEN e.target = 'failed' THEN coalesce(
                   (SELECT r.attempt FROM activities_activityrun r WHERE r.id = e.run_id), a.attempts) END,
               -- Agents may choose the code. Any other text is omitted, because events contain no free text.
               'error_code', CASE WHEN e.target = 'failed' THEN substring(e.detail -> 'error' ->> 'code' FROM '^[a-z][a-z0-9_]{0,39}$') END)) AS data
    FROM taken t
    CROSS JOIN LATERAL (
        SELECT activity, nth, t.seqs[nth] AS first_seq, t.seqs[cardinality(t.activities) + nth] AS last_seq
        FROM unnest(t.activities) WITH ORDINALITY AS u(activity, nth)
    ) history
    CROSS JOIN LATERAL (
        SELECT move.*, h.activity_id, h.run_id, h.detail, h.at
        FROM (
            SELECT * FROM activities_activityevent
            WHERE activity_id = history.activity AND seq BETWEEN history.first_seq AND history.last_seq OFFSET 0
        ) h
        CROSS JOIN LATERAL (
            SELECT h.seq, h.verb, CASE WHEN h.verb = 'start' THEN 'assigned' ELSE h.source END AS source, h.target
            UNION ALL
            -- A start from `created` also represents a claim.
            SELECT h.seq - 1, 'claim', 'created', 'assigned' WHERE h.verb = 'start' AND h.source = 'created'
        ) move
    ) e
    CROSS JOIN LATERAL (
        SELECT pipeline_run_id, agent_role, human_role, parent_id, link_kind, step, schedule_id, deliverable_id, assignee_type, is_approval_gate,
            attempts
        FROM activities_activity WHERE id = history.activity OFFSET 0
    ) a
    CROSS JOIN LATERAL (
        SELECT 0 AS place, CASE
            WHEN e.verb = 'submit' THEN 'activity.created'
            WHEN e.verb = 'vote' THEN 'activity.voted'
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
    WHERE t.kind IS NULL
), events AS (
    SELECT id, nth, seq, place, kind, at, activity_id, pipeline_run_id, data FROM of_activities
    UNION ALL
    SELECT id, 0, 0, 0, kind, at, activity_id, pipeline_run_id, data FROM taken WHERE kind IS NOT NULL
), numbered AS (
    INSERT INTO tenants_event (id, tenant_id, number, kind, at, activity_id, pipeline_run_id, data)
    SELECT nextval('tenants_freshevent_id_seq'), %(tenant)s, %(last)s + row_number() OVER (ORDER BY id, nth, seq, place),
           kind, at, activity_id, pipeline_run_id, data
    FROM events ORDER BY id, nth, seq, place
    RETURNING number, kind
), counted AS (
    UPDATE tenants_eventlog SET last_number = %(last)s + (SELECT count(*) FROM numbered) WHERE tenant_id = %(tenant)s
), webhook AS (
    -- The lock prevents the deletion of a webhook before its deliveries are committed. A webhook that was just deleted gets none.
    SELECT id, kinds FROM tenants_webhookendpoint WHERE tenant_id = %(tenant)s AND enabled ORDER BY id FOR KEY SHARE
), sent AS (
    INSERT INTO tenants_webhookdelivery (id, tenant_id, endpoint_id, event_number, kind, state, next_attempt_at, created_at)
    -- A UUIDv7: the milliseconds replace the first 48 random bits, and the bits 52 and 53 turn version 4 into 7.
    SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
               PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid,
           %(tenant)s, w.id, n.number, n.kind, 'pending', clock_timestamp(), clock_timestamp()
    FROM numbered n JOIN webhook w ON w.kinds = '[]'::jsonb OR w.kinds ? n.kind
)
SELECT (SELECT count(*) FROM taken) AS taken, count(*) AS numbered FROM numbered
