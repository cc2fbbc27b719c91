-- Reserves the amount that a run may need in every budget that counts it, or in none of them if one has no room.
-- Parameters  tenant, run, activity, role, deliverable, day; dollars, tokens: the estimate for budgets without their own estimate
-- Returns     a row per budget: id, name, unit, period_start (null if nothing was reserved), need, cap, spent and reserved as they are
--             now, has_room, warned (its warning is due now)
-- Guarantee   Budgets are locked in the order of their ids, so concurrent runs never reserve more than the budgets have.
-- If the run may start, its activity no longer waits for a budget. A budget in runs counts a run when it starts, and reserves nothing.
WITH budget AS MATERIALIZED (
    SELECT b.*, CASE b.period WHEN 'day' THEN %(day)s::date WHEN 'month' THEN date_trunc('month', %(day)s::date)::date
                              ELSE b.period_start END AS begins
    FROM tenants_budget b
    WHERE b.tenant_id = %(tenant)s AND b.deleted_at IS NULL
      AND (b.agent_role IS NULL OR b.agent_role = %(role)s)
      AND (b.deliverable_id IS NULL OR b.deliverable_id = %(deliverable)s)
      AND (b.activity_id IS NULL OR b.activity_id = %(activity)s)
    ORDER BY b.id FOR UPDATE
), needs AS MATERIALIZED (
    -- A claim from a day before the budget's period (its transaction began before midnight) changes no period, and its run does not count
    -- in this one.
    SELECT id, name, unit, cap, begins > period_start AS turned, greatest(begins, period_start) AS period_start, reserved, warned_at,
           warning_share, overshoot, CASE WHEN begins > period_start THEN 0 ELSE spent END AS spent,
           CASE WHEN unit = 'runs' AND begins >= period_start THEN 1 ELSE 0 END AS runs,
           CASE unit WHEN 'runs' THEN 1 WHEN 'tokens' THEN coalesce(estimate, %(tokens)s) ELSE coalesce(estimate, %(dollars)s) END AS need
    FROM budget
), decision AS (
    SELECT bool_and(spent + reserved + need <= cap AND spent + reserved < cap) AS start FROM needs
), updated AS (
    UPDATE tenants_budget b
    SET spent = n.spent + n.runs,
        reserved = n.reserved + CASE n.unit WHEN 'runs' THEN 0 ELSE n.need END,
        period_start = n.period_start,
        overshoot = CASE WHEN n.turned THEN 0 ELSE n.overshoot END,
        warned_at = CASE WHEN n.runs = 1 AND n.spent + 1 >= n.warning_share * n.cap
                         THEN coalesce(CASE WHEN NOT n.turned THEN n.warned_at END, clock_timestamp())
                         WHEN n.turned THEN NULL ELSE n.warned_at END
    FROM needs n, decision
    WHERE b.tenant_id = %(tenant)s AND b.id = n.id AND decision.start
    RETURNING b.id, b.period_start, b.spent, b.reserved, b.warned_at IS NOT NULL AND (n.turned OR n.warned_at IS NULL) AS warned
), reservation AS (
    INSERT INTO tenants_reservation (tenant_id, budget_id, run_id, activity_id, amount, reserved_at)
    SELECT %(tenant)s, n.id, %(run)s, %(activity)s, n.need, clock_timestamp()
    FROM needs n, decision WHERE decision.start AND n.unit <> 'runs'
), ended_wait AS (
    DELETE FROM tenants_budgetwait w USING decision
    WHERE w.tenant_id = %(tenant)s AND w.activity_id = %(activity)s AND coalesce(decision.start, true)
)
SELECT n.id, n.name, n.unit, c.period_start, n.need, n.cap, coalesce(c.spent, n.spent) AS spent, coalesce(c.reserved, n.reserved) AS reserved,
       n.spent + n.reserved + n.need <= n.cap AND n.spent + n.reserved < n.cap AS has_room, coalesce(c.warned, false) AS warned
FROM needs n LEFT JOIN updated c ON c.id = n.id
ORDER BY n.id
