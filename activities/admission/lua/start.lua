-- Marks the slots of a grant as started, if the grant still holds them.
-- KEYS[1]  the pointer
-- ARGV     activity id, grant
-- Returns  1 if the grant holds the slots, 0 if not, -1 if closed
-- Twice    1 again. If a message is delivered twice, the claim in PostgreSQL lets only one delivery run.

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
