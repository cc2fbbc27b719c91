"""Events: a log of what happens to a tenant's work, which programs can follow without missing anything.

Triggers write each event in the transaction of its change (`sql/record.sql`). After the commit, the first reader gives it the
tenant's next number, under a lock (`log.py`). Readers only see numbered events, so a number never appears below one that they have seen.
"""
