-- I43  Spent and reserved money is within each budget's cap, unless an overshoot is recorded.
-- Returns     id of each budget that violates this
SELECT id FROM tenants_budget WHERE deleted_at IS NULL AND spent + reserved > cap + overshoot
