-- Writes waiters and held slots as PostgreSQL has them, into a generation under construction or the one in force.
-- KEYS[1]  the pointer
-- ARGV[1]  generation; empty for the one in force
-- ARGV[2]  JSON {"hold": [[id, tenant, role, band, group, grant, seated 0 or 1]...],
--                "offer": [[id, tenant, role, band, score ms, group]...]}
-- Returns  1, or -1 when closed
-- Twice    What is there already stays as it is. Held slots count even beyond a cap: they are in use.

if ARGV[1] ~= "" then
    use(ARGV[1])
elseif not open() then
    return -1
end
local request = cjson.decode(ARGV[2])
for _, item in ipairs(request.hold) do
    local id = item[1]
    local slot = read_slot(id)
    if not slot then
        local waiting = redis.call("HGET", key("entries"), id)
        if waiting then
            dequeue(id, waiting)
        end
        local lane = lane_name(item[2], item[3], item[4], item[5])
        local pool = item[7] == 1 and pool_of(item[3]) or ""
        hold(id, lane, lane_parts(lane), pool, item[6], now)
    elseif slot.grant ~= item[6] then
        slot.grant = item[6]
        write_slot(id, slot)
    end
end
for _, item in ipairs(request.offer) do
    enqueue(item[1], item[2], item[3], item[4], item[5], item[6])
end
return 1
