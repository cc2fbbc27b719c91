-- I43  What is spent and what is kept is within the cap of each budget, unless an overshoot is on record.
-- Returns     id of each budget for which that is not so
SELECT id FROM tenants_budget WHERE deleted_at IS NULL AND spent + reserved > cap + overshoot
