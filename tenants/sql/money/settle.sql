-- Adds the consumption of a run since its last report to every budget that counts the run, and deducts it from the run's reservations.
-- Parameters  tenant, run, activity, role, deliverable, day; dollars, tokens: since its last report; ended: true to delete its reservations
-- Returns     a row per budget: id, name, unit, period_start, cap, spent, reserved, warned (its warning is due now), and over: the run
--             has used up its reservation, and the cap leaves no more room. It may not use amounts that are reserved for other runs.
--             A budget in runs stops none that has begun: it is spent already.
-- Runs in the transaction that counts the run's report and holds the run's lock.
WITH budget AS MATERIALIZED (
    SELECT b.*, CASE b.period WHEN 'day' THEN %(day)s::date WHEN 'month' THEN date_trunc('month', %(day)s::date)::date
                              ELSE b.period_start END AS begins
    FROM tenants_budget b
    WHERE b.tenant_id = %(tenant)s AND b.deleted_at IS NULL
      AND (b.agent_role IS NULL OR b.agent_role = %(role)s)
      AND (b.deliverable_id IS NULL OR b.deliverable_id = %(deliverable)s)
      AND (b.activity_id IS NULL OR b.activity_id = %(activity)s)
    ORDER BY b.id FOR UPDATE
), held AS MATERIALIZED (
    SELECT r.id, r.budget_id, r.amount FROM tenants_reservation r WHERE r.tenant_id = %(tenant)s AND r.run_id = %(run)s FOR UPDATE
), delta AS MATERIALIZED (
    SELECT b.*, coalesce(h.amount, 0) AS held,
           CASE b.unit WHEN 'dollars' THEN %(dollars)s::numeric WHEN 'tokens' THEN %(tokens)s::numeric ELSE 0 END AS delta
    FROM budget b LEFT JOIN held h ON h.budget_id = b.id
), sums AS MATERIALIZED (
    -- A report from a day before the budget's period (its transaction began before midnight) does not count in this period.
    SELECT d.*, d.begins > d.period_start AS turned,
           CASE WHEN d.begins > d.period_start THEN d.delta WHEN d.begins = d.period_start THEN d.spent + d.delta ELSE d.spent END AS now_spent,
           CASE WHEN %(ended)s THEN 0 ELSE greatest(d.held - greatest(d.delta, 0), 0) END AS now_held
    FROM delta d
), counted AS (
    UPDATE tenants_budget b
    SET spent = s.now_spent,
        reserved = s.reserved - s.held + s.now_held,
        period_start = greatest(s.begins, s.period_start),
        overshoot = greatest(CASE WHEN s.turned THEN 0 ELSE s.overshoot END,
                             s.now_spent + s.reserved - s.held + s.now_held - s.cap),
        warned_at = CASE WHEN s.now_spent >= s.warning_share * s.cap
                         THEN coalesce(CASE WHEN NOT s.turned THEN s.warned_at END, clock_timestamp())
                         WHEN s.turned THEN NULL ELSE s.warned_at END
    FROM sums s
    WHERE b.tenant_id = %(tenant)s AND b.id = s.id
    RETURNING b.id, b.name, b.unit, b.period_start, b.cap, b.spent, b.reserved, s.now_held,
              b.warned_at IS NOT NULL AND (s.turned OR s.warned_at IS NULL) AS warned
), reduced AS (
    UPDATE tenants_reservation r SET amount = s.now_held FROM held h JOIN sums s ON s.id = h.budget_id
    WHERE r.id = h.id AND NOT %(ended)s AND r.amount <> s.now_held
), deleted AS (
    DELETE FROM tenants_reservation r USING held h WHERE r.id = h.id AND %(ended)s
)
SELECT id, name, unit, period_start, cap, spent, reserved, warned,
       unit <> 'runs' AND (spent > cap OR (now_held = 0 AND spent + reserved > cap)) AS over
FROM counted ORDER BY id
