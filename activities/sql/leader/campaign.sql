-- Renews the lease of the process that leads, or takes over one that has run out. Everything by PostgreSQL's clock.
-- Parameters  holder, epoch (of the lease that the process believes to hold; 0: none), host, pid, seconds, lived (seconds since the process
--             began to ask), heartbeat (seconds between two of a worker), patience (seconds)
-- Returns     epoch, null while another process leads; now
-- Guarantee   the epoch is raised whenever the lease changes hands, so two processes never hold the same one. A lease that ends later
--             than any that can have been written by this clock is from a clock that was wrong, and counts as one that has run out.
-- An outage is noted when nobody renewed for two leases, though the process that asks now lived all the time: then none could reach
-- PostgreSQL, or all were frozen. A process that was started afterwards tells of none, since its predecessors may have died of their work.
-- Consumers of mailboxes whose leases ended meanwhile have `patience` seconds to go on with their batches; one whose batch somebody works on
-- at this moment is passed over, since the lead must not wait for it.
-- Workers that beat until the outage began are marked: what became of them meanwhile is no fault of what they ran.
WITH held AS (
    UPDATE activities_leaderlease
    SET since = CASE WHEN holder = %(holder)s AND epoch = %(epoch)s THEN since ELSE clock_timestamp() END,
        epoch = CASE WHEN holder = %(holder)s AND epoch = %(epoch)s THEN epoch ELSE epoch + 1 END,
        (outage_began_at, outage_ended_at) = (
            SELECT CASE WHEN o.is_new THEN o.renewed_at ELSE outage_began_at END,
                   CASE WHEN o.is_new THEN statement_timestamp() ELSE outage_ended_at END
            FROM (SELECT r.renewed_at, clock_timestamp() - r.renewed_at
                             BETWEEN 2 * make_interval(secs => %(seconds)s) AND make_interval(secs => %(lived)s) AS is_new
                  FROM (SELECT expires_at - make_interval(secs => %(seconds)s) AS renewed_at) r) o),
        holder = %(holder)s, host = %(host)s, pid = %(pid)s, expires_at = clock_timestamp() + make_interval(secs => %(seconds)s)
    WHERE (holder = %(holder)s AND epoch = %(epoch)s)
       OR expires_at < clock_timestamp()
       OR expires_at > clock_timestamp() + 10 * make_interval(secs => %(seconds)s)
    RETURNING epoch, outage_began_at, outage_ended_at
), made AS (
    INSERT INTO activities_leaderlease (id, holder, epoch, host, pid, expires_at)
    SELECT 1, %(holder)s, 1, %(host)s, %(pid)s, clock_timestamp() + make_interval(secs => %(seconds)s)
    WHERE NOT EXISTS (SELECT FROM activities_leaderlease) ON CONFLICT DO NOTHING
    RETURNING epoch
), marked AS (
    UPDATE activities_workerprocess w SET outage_at = held.outage_ended_at
    FROM held
    WHERE held.outage_ended_at = statement_timestamp() AND w.ended_at IS NULL
      AND w.beat_at > held.outage_began_at - 2 * make_interval(secs => %(heartbeat)s)
), batches AS (
    SELECT b.id FROM activities_mailboxbatch b, held
    WHERE held.outage_ended_at = statement_timestamp() AND b.state = 'open' AND b.leased_until > held.outage_began_at
      AND b.leased_until < held.outage_ended_at + make_interval(secs => %(patience)s)
    FOR UPDATE OF b SKIP LOCKED
), kept AS (
    UPDATE activities_mailboxbatch b SET leased_until = clock_timestamp() + make_interval(secs => %(patience)s)
    FROM batches WHERE b.id = batches.id
)
SELECT (SELECT epoch FROM held UNION ALL SELECT epoch FROM made) AS epoch, clock_timestamp() AS now
