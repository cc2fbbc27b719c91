-- Moves the mark, which this transaction has locked.
-- Parameters  counted, seen, barrier
-- Returns     nothing
UPDATE activities_countingmark SET counted = %(counted)s, seen = %(seen)s, barrier = %(barrier)s, at = clock_timestamp()
