-- Where one activity stands.
-- KEYS[1]  the pointer
-- ARGV[1]  activity id
-- Returns  JSON: {"state": "closed"}, {"state": "unknown"},
--          {"state": "held", "started": bool, "grant": g},
--          {"state": "waiting", "at": "ready", "worker:<role>" or the scope that has no room, "cap": n, "used": n, "position": n,
--           "seats": n, "taken": n, "duration": seconds}

if not open() then
    return cjson.encode({ state = "closed" })
end
local slot = read_slot(ARGV[1])
if slot then
    return cjson.encode({ state = "held", started = slot.started > 0, grant = slot.grant })
end
local entry = redis.call("HGET", key("entries"), ARGV[1])
if not entry then
    return cjson.encode({ state = "unknown" })
end
local lane = split(entry, "|", 2)[2]
local parts = lane_parts(lane)
local pool = pool_of(parts.role)
local scope = pool and first_full(scopes_of(parts), parts.tenant, parts.role)
local answer = {
    state = "waiting", at = pool and (scope or "ready") or "worker:" .. parts.role,
    position = redis.call("ZRANK", key("queue:" .. lane), ARGV[1]) + 1,
    duration = number("durations", parts.tenant .. "|" .. parts.role, "1"),
    seats = pool and seats_of(pool) or 0,
    taken = pool and used_of("seat:" .. pool) or 0,
}
if scope then
    answer.cap = cap_of(scope, parts.tenant, parts.role)
    answer.used = used_of(scope)
end
return cjson.encode(answer)
