-- Ends the lease of a process that stops, so that the next one need not wait until it has run out.
-- Parameters  holder, epoch
-- Returns     nothing; changes nothing when the lease has changed hands
UPDATE activities_leaderlease SET expires_at = clock_timestamp() WHERE holder = %(holder)s AND epoch = %(epoch)s
