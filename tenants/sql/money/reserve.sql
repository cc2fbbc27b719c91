-- Reserves the amount that a run may need in every budget that counts it, or in none of them if one has no room.
-- Parameters  tenant, run, activity, role, deliverable, day; dollars, tokens: the estimate for budgets without their own estimate
-- Returns     a row per budget: id, name, unit, period_start (null if nothing was reserved), need, cap, spent and reserved as they are
--             now, has_room, warned (its warning is due now)
-- Guarantee   Budgets are locked in the order of their ids, so concurrent runs never reserve more than the budgets have.
-- If the run may start, its activity no longer waits for a budget. A budget in runs counts a run when it starts, and reserves nothing.
WITH budget AS MATERIALIZED (
    SELECT b.*, CASE b.period WHEN 'day' THEN %(day)s::date WHEN 'month' THEN date_trunc('month', %(day)s::date)::date
                              ELSE b.period_start END > b.period_start AS turned
    FROM tenants_budget b
    WHERE b.tenant_id = %(tenant)s AND b.deleted_at IS NULL
      AND (b.agent_role IS NULL OR b.agent_role = %(role)s)
      AND (b.deliverable_id IS NULL OR b.deliverable_id = %(deliverable)s)
      AND (b.activity_id IS NULL OR b.activity_id = %(activity)s)
    ORDER BY b.id FOR UPDATE
), judged AS MATERIALIZED (
    SELECT id, name, unit, cap, turned, reserved, warned_at, warning_share, overshoot,
           CASE WHEN turned THEN 0 ELSE spent END AS spent,
           CASE unit WHEN 'runs' THEN 1 WHEN 'tokens' THEN coalesce(estimate, %(tokens)s) ELSE coalesce(estimate, %(dollars)s) END AS need
    FROM budget
), verdict AS (
    SELECT bool_and(spent + reserved + need <= cap AND spent + reserved < cap) AS start FROM judged
), counted AS (
    UPDATE tenants_budget b
    SET spent = j.spent + CASE j.unit WHEN 'runs' THEN 1 ELSE 0 END,
        reserved = j.reserved + CASE j.unit WHEN 'runs' THEN 0 ELSE j.need END,
        period_start = CASE b.period WHEN 'day' THEN %(day)s::date WHEN 'month' THEN date_trunc('month', %(day)s::date)::date
                                     ELSE b.period_start END,
        overshoot = CASE WHEN j.turned THEN 0 ELSE j.overshoot END,
        warned_at = CASE WHEN j.unit = 'runs' AND j.spent + 1 >= j.warning_share * j.cap
                         THEN coalesce(CASE WHEN NOT j.turned THEN j.warned_at END, clock_timestamp())
                         WHEN j.turned THEN NULL ELSE j.warned_at END
    FROM judged j, verdict
    WHERE b.tenant_id = %(tenant)s AND b.id = j.id AND verdict.start
    RETURNING b.id, b.period_start, b.spent, b.reserved, b.warned_at IS NOT NULL AND (j.turned OR j.warned_at IS NULL) AS warned
), kept AS (
    INSERT INTO tenants_reservation (tenant_id, budget_id, run_id, activity_id, amount, reserved_at)
    SELECT %(tenant)s, j.id, %(run)s, %(activity)s, j.need, clock_timestamp()
    FROM judged j, verdict WHERE verdict.start AND j.unit <> 'runs'
), waited AS (
    DELETE FROM tenants_budgetwait w USING verdict
    WHERE w.tenant_id = %(tenant)s AND w.activity_id = %(activity)s AND coalesce(verdict.start, true)
)
SELECT j.id, j.name, j.unit, c.period_start, j.need, j.cap, coalesce(c.spent, j.spent) AS spent, coalesce(c.reserved, j.reserved) AS reserved,
       j.spent + j.reserved + j.need <= j.cap AND j.spent + j.reserved < j.cap AS has_room, coalesce(c.warned, false) AS warned
FROM judged j LEFT JOIN counted c ON c.id = j.id
ORDER BY j.id
