-- Ends the lease of a process that stops, so that the next leader need not wait until it expires.
-- Parameters  holder, epoch
-- Returns     nothing; changes nothing if the lease has changed hands
UPDATE activities_leaderlease SET expires_at = clock_timestamp() WHERE holder = %(holder)s AND epoch = %(epoch)s
