-- Creates the trigger function that records which activities have events without a number (`record.sql` attaches it), and the function that
-- notifies the followers of a log.
-- A change sends a notification only if the tenant's log has followers, and only for the first event without a number. The reason is that
-- NOTIFY serializes commits, which would slow down work without followers. Followers check again after new events, and at least once a
-- second.

CREATE OR REPLACE FUNCTION events_ring(of_tenant uuid) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('orchestrator_events', log.tenant_id::text)
    FROM tenants_eventlog log
    WHERE log.tenant_id = of_tenant AND log.listened_until > now()
      -- Evaluated only if the log has followers.
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
    -- A row only refers to entries of histories; number.sql makes events of them. A row refers to at most 16 activities, so that the size
    -- of a batch of rows can be estimated. Followers are checked before `events_ring` is called, because most logs have none, and the
    -- call costs more than the check.
    IF activities[1] = ALL (activities) THEN
        -- By far the most frequent case. Grouping and ordering would take longer than everything else here.
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
