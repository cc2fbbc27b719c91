-- The trigger function that records which activities have unnumbered events (`record.sql` attaches it), and the notification.
-- A change sends a notification only if somebody follows the tenant's log, and only for the first event that is not numbered yet:
-- NOTIFY makes commits wait for each other, so work that nobody follows must not pay for it. Followers check again after new events, and
-- once a second in any case.

CREATE OR REPLACE FUNCTION events_ring(of_tenant uuid) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('orchestrator_events', log.tenant_id::text)
    FROM tenants_eventlog log
    WHERE log.tenant_id = of_tenant AND log.listened_until > now()
      -- Asked only where somebody follows.
      AND (SELECT fresh.id FROM tenants_freshevent fresh WHERE fresh.tenant_id = log.tenant_id LIMIT 1) IS NULL;
$$;

CREATE OR REPLACE FUNCTION events_of_activities() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    tenants uuid[]; activities uuid[]; first_seq integer; last_seq integer;
BEGIN
    SELECT array_agg(tenant_id), array_agg(activity_id), min(seq), max(seq) INTO tenants, activities, first_seq, last_seq FROM added;
    IF activities IS NULL THEN
        RETURN NULL;
    END IF;
    -- What is to be said of them is found when it is numbered: the histories themselves are the events until then. A row points at 16
    -- histories at most, so that whoever numbers rows knows about how much that is. Followers are asked for before the bell is rung, since
    -- on most ways through nobody follows, and the call of a function costs more than the question.
    IF activities[1] = ALL (activities) THEN
        -- The most frequent case by far, for which grouping and ordering would take longer than all the rest.
        IF EXISTS (SELECT FROM tenants_eventlog log WHERE log.tenant_id = tenants[1] AND log.listened_until > now()) THEN
            PERFORM events_ring(tenants[1]);
        END IF;
        INSERT INTO tenants_freshevent (tenant_id, activities, seqs) VALUES (tenants[1], activities[1:1], ARRAY[first_seq, last_seq]);
        RETURN NULL;
    END IF;
    IF EXISTS (SELECT FROM tenants_eventlog log WHERE log.tenant_id = ANY (tenants) AND log.listened_until > now()) THEN
        PERFORM events_ring(tenant_id) FROM (SELECT DISTINCT tenant_id FROM added) concerned;
    END IF;
    INSERT INTO tenants_freshevent (tenant_id, activities, seqs)
    SELECT tenant_id, array_agg(activity_id ORDER BY place), array_agg(first_of_it ORDER BY place) || array_agg(last_of_it ORDER BY place)
    FROM (
        SELECT tenant_id, activity_id, min(seq) AS first_of_it, max(seq) AS last_of_it,
               row_number() OVER (PARTITION BY tenant_id ORDER BY min(at), activity_id) AS place
        FROM added GROUP BY tenant_id, activity_id
    ) changed
    GROUP BY tenant_id, (place - 1) / 16 ORDER BY min(place);
    RETURN NULL;
END $$;
