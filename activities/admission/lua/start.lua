-- A worker asks whether the grant in its message still holds, and begins to use it.
-- KEYS[1]  the pointer
-- ARGV     activity id, grant
-- Returns  1 if the slot is this grant's, 0 if it is not, -1 when closed
-- Twice    The second time it is 1 again: the claim in PostgreSQL decides between two deliveries.

if not open() then
    return -1
end
local slot = read_slot(ARGV[1])
if not slot or slot.grant ~= ARGV[2] then
    return 0
end
if slot.started == 0 then
    start_slot(ARGV[1], slot)
end
return 1
