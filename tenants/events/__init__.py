"""Events: what happens to a tenant's work, as a log that programs can follow without missing anything.

Triggers write each event in the transaction of its change (`sql/record.sql`). Once that has committed, the first reader gives it the
tenant's next number, under a lock (`log.py`). Readers see numbered events alone, so a number never appears below one they have seen.
"""
