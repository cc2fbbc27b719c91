-- Selects the tenants whose configuration was changed by transactions that the previous check did not see.
-- Parameters  horizon, at: as the previous check returned them; 0 and null at first
-- Returns     one row: horizon and at, for the next check; everything: all cached configuration is out of date;
--             tenants: those whose configuration has changed; own: this transaction has changed some and may still be rolled back
-- Guarantee   A transaction that a snapshot does not see yet has a number of at least the snapshot's xmin, so the next check finds it once it
--             has committed. Numbers from xmax on are those of another server, from which this database was restored.
--             Changes are kept for a day, so after half an hour without a check all cached configuration counts as out of date.
SELECT pg_snapshot_xmin(s.snapshot)::text::bigint AS horizon, statement_timestamp() AS at,
       coalesce(%(at)s::timestamptz < statement_timestamp() - interval '30 minutes', true) OR changed.everybody AS everything,
       changed.tenants, changed.own
FROM (SELECT pg_current_snapshot() AS snapshot, coalesce(pg_current_xact_id_if_assigned()::text::bigint, -1) AS own) s
CROSS JOIN LATERAL (
    SELECT coalesce(bool_or(c.concerns IS NULL), false) AS everybody, array_agg(DISTINCT c.concerns) AS tenants,
           coalesce(bool_or(c.transaction = s.own), false) AS own
    FROM tenants_configurationchange c
    WHERE c.transaction >= %(horizon)s
      AND (c.transaction < pg_snapshot_xmax(s.snapshot)::text::bigint OR c.transaction = s.own)
) changed
