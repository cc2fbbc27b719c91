-- Releases the worker's seat after an agent has accepted the work. The grant keeps its other slots.
-- KEYS[1]  the pointer
-- ARGV     activity id, grant
-- Returns  1 if this grant holds the slots, 0 if not, -1 if closed
-- Twice    1 again; the seat is released only once.

if not open() then
    return -1
end
local slot = read_slot(ARGV[1])
if not slot or slot.grant ~= ARGV[2] then
    return 0
end
release_seat(ARGV[1], slot)
return 1
