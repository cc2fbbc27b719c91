-- The agent accepted the work: releases the worker's seat and keeps every other slot.
-- KEYS[1]  the pointer
-- ARGV     activity id, grant
-- Returns  1 if this grant holds the slots (also the second time), 0 if not, -1 if closed

if not open() then
    return -1
end
local slot = read_slot(ARGV[1])
if not slot or slot.grant ~= ARGV[2] then
    return 0
end
leave_seat(ARGV[1], slot)
return 1
