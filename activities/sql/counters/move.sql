-- Moves the mark, which this transaction has locked.
-- Parameters  counted, seen, barrier; whole: all that was seen before is counted now; newer: there is something newer, which is noted
-- Returns     nothing
UPDATE activities_countingmark SET counted = %(counted)s, seen = %(seen)s, barrier = %(barrier)s, at = clock_timestamp(),
    -- The time of this transaction's beginning: what was written before it is what it sees.
    complete_at = CASE WHEN NOT %(whole)s THEN complete_at WHEN %(newer)s THEN greatest(complete_at, noted_at) ELSE now() END,
    noted_at = CASE WHEN %(newer)s THEN now() ELSE noted_at END
