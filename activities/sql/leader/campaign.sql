-- Renews the lease of the leader, or takes over an expired one. All times are PostgreSQL's.
-- Parameters  holder, epoch (of the lease that the process believes it holds; 0: none), host, pid, seconds (length of a lease),
--             lived (seconds since the process first asked), heartbeat (seconds between two of a worker), patience (seconds)
-- Returns     epoch, null while another process leads; now
-- Guarantee   the epoch increases whenever the lease changes hands, so two processes never hold the same one, and whenever the process does
--             not know that it holds the lease, because it never got the answer to its takeover. A lease that ends later than
--             this clock can have set it comes from a wrong clock, and counts as expired.
-- An outage is recorded if nobody renewed the lease for the length of two leases although this process lived all the time: either no
-- process could reach PostgreSQL, or all were frozen. A process that was started later records none, because its predecessors may have been
-- killed by their work.
-- Consumers of mailboxes whose leases ended in the outage, or end soon after it, get `patience` seconds to continue their batches. Batches
-- that other transactions have locked are skipped, because the leader must not wait.
-- Workers that beat until the outage began are marked, because the outage, and not their work, may have ended their runs.
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
    WHERE holder = %(holder)s
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
