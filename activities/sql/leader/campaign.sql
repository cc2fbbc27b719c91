-- Renews the lease of the process that leads, or takes over one that has run out. Everything by PostgreSQL's clock.
-- Parameters  holder, epoch (of the lease that the process believes to hold; 0: none), host, pid, seconds
-- Returns     epoch, null while another process leads; now
-- Guarantee   the epoch is raised whenever the lease changes hands, so two processes never hold the same one. A lease that ends later
--             than any that can have been written by this clock is from a clock that was wrong, and counts as one that has run out.
WITH held AS (
    UPDATE activities_leaderlease
    SET since = CASE WHEN holder = %(holder)s AND epoch = %(epoch)s THEN since ELSE clock_timestamp() END,
        epoch = CASE WHEN holder = %(holder)s AND epoch = %(epoch)s THEN epoch ELSE epoch + 1 END,
        holder = %(holder)s, host = %(host)s, pid = %(pid)s, expires_at = clock_timestamp() + make_interval(secs => %(seconds)s)
    WHERE (holder = %(holder)s AND epoch = %(epoch)s)
       OR expires_at < clock_timestamp()
       OR expires_at > clock_timestamp() + 10 * make_interval(secs => %(seconds)s)
    RETURNING epoch
), made AS (
    INSERT INTO activities_leaderlease (id, holder, epoch, host, pid, expires_at)
    SELECT 1, %(holder)s, 1, %(host)s, %(pid)s, clock_timestamp() + make_interval(secs => %(seconds)s)
    WHERE NOT EXISTS (SELECT FROM activities_leaderlease) ON CONFLICT DO NOTHING
    RETURNING epoch
)
SELECT (SELECT epoch FROM held UNION ALL SELECT epoch FROM made) AS epoch, clock_timestamp() AS now
