-- Moves the mark, which this transaction has locked.
-- Parameters  counted, seen, barrier; whole: whether all events seen before are counted now; newer: whether there are newer events, up to
--             the new `seen`
-- Returns     nothing
UPDATE activities_countingmark SET counted = %(counted)s, seen = %(seen)s, barrier = %(barrier)s, at = clock_timestamp(),
    -- now() is when this transaction began. It sees all that was committed before.
    complete_at = CASE WHEN NOT %(whole)s THEN complete_at WHEN %(newer)s THEN greatest(complete_at, noted_at) ELSE now() END,
    noted_at = CASE WHEN %(newer)s THEN now() ELSE noted_at END
