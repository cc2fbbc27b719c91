-- Whose configuration was changed by transactions that a look before did not see.
-- Parameters  horizon, at: as the look before returned them; 0 and null at first
-- Returns     one row: horizon and at, for the look after this one; everything: no tenant's configuration may be believed any more;
--             tenants: those whose configuration has changed; own: this transaction has changed some and may still be rolled back
-- Guarantee   a transaction that a snapshot does not see yet has a number of at least the snapshot's xmin, so the next look finds it, as soon as
--             it has committed. Numbers from xmax on are those of another server that this database was restored from.
--             Notes are kept for a day: who has not looked for half an hour believes nothing.
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
