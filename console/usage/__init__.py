"""Usage: what was consumed by day, role and pipeline, and how far budgets are used."""
