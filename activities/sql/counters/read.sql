-- Reads all counters.
-- Returns     at, complete_at: seconds since 1970, null before the first time; name, role, status, le, count, total: null, in one row,
--             if there are no counters.
SELECT extract(epoch FROM m.at)::float AS at, extract(epoch FROM m.complete_at)::float AS complete_at,
       c.name, c.role, c.status, c.le, c.count, c.total
FROM (SELECT max(at) AS at, max(complete_at) AS complete_at FROM activities_countingmark) m LEFT JOIN activities_counter c ON true
