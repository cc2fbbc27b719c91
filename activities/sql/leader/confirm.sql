-- Asks whether an epoch is still the one in force, and keeps the lease from changing hands until the transaction ends.
-- Parameters  epoch
-- Returns     one row; none when the lease has run out or changed hands
-- It comes last in its transaction, so that the lock lasts as long as the commit.
SELECT epoch FROM activities_leaderlease WHERE epoch = %(epoch)s AND expires_at > clock_timestamp() FOR SHARE
