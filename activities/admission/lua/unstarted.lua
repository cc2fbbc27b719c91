-- Lists the grants that no worker has started yet. Each of them holds a seat, which limits their number.
-- KEYS[1]  the pointer
-- ARGV     none
-- Returns  "closed", or JSON [[role, tenant, age ms]...]

if not open() then
    return CLOSED
end
local result = {}
local waiting = redis.call("ZRANGE", key("unstarted"), 0, -1, "WITHSCORES")
for i = 1, #waiting, 2 do
    local slot = read_slot(waiting[i])
    if slot then
        local parts = lane_parts(slot.lane)
        result[#result + 1] = { parts.role, parts.tenant, math.max(0, now - tonumber(waiting[i + 1])) }
    end
end
if #result == 0 then
    return "[]"
end
return cjson.encode(result)
