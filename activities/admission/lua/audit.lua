-- Charges tenants for the time that their runs have used so far, and lists all slots for comparison with PostgreSQL.
-- KEYS[1]  the pointer
-- ARGV[1]  1: withdraw unstarted grants whose role has no worker with seats any more, and queue their activities again; else 0
-- Returns  "closed", or JSON [[id, grant, started 0 or 1, age ms, tenant, role, seated 0 or 1]...]

if not open() then
    return CLOSED
end
local function has_seats(role)
    local pool = pool_of(role)
    return pool and seats_of(pool) > 0
end

local result = {}
local ids = redis.call("HKEYS", key("slots"))
for _, id in ipairs(ids) do
    local slot = read_slot(id)
    local parts = lane_parts(slot.lane)
    local elapsed = slot.started > 0 and (now - slot.started) / 1000 or 0
    if elapsed > slot.charged then
        charge(parts.role, parts.tenant, elapsed - slot.charged)
        slot.charged = elapsed
        write_slot(id, slot)
    end
    if ARGV[1] == "1" and slot.started == 0 and not has_seats(parts.role) then
        local files = files_of(parts)
        release(id, slot.grant)
        enqueue(id, parts.tenant, parts.role, parts.band, slot.score, parts.group, slot.since, files, 0)
    else
        result[#result + 1] = { id, slot.grant, slot.started > 0 and 1 or 0, now - slot.granted, parts.tenant, parts.role,
            slot.pool ~= "" and 1 or 0 }
    end
end
reindex()
if #result == 0 then
    return "[]"
end
return cjson.encode(result)
