-- Checks whether an epoch is still in force, and keeps the lease from changing hands until the transaction ends.
-- Parameters  epoch
-- Returns     one row; nothing if the lease has expired or changed hands
-- Run it last in the transaction, so that the lock lasts only as long as the commit.
SELECT epoch FROM activities_leaderlease WHERE epoch = %(epoch)s AND expires_at > clock_timestamp() FOR SHARE
