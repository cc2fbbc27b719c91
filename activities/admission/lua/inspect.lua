-- Where one activity stands.
-- KEYS[1]  the pointer
-- ARGV[1]  activity id
-- Returns  JSON: {"state": "closed"}, {"state": "unknown"},
--          {"state": "held", "started": bool, "grant": g},
--          {"state": "waiting", "at": "ready" or a scope, "cap": n, "used": n, "position": n, "seats": n, "taken": n,
--           "duration": seconds}

if not open() then
    return cjson.encode({ state = "closed" })
end
local slot = read_slot(ARGV[1])
if slot then
    return cjson.encode({ state = "held", started = slot.started > 0, grant = slot.grant })
end
local lane = redis.call("HGET", key("entries"), ARGV[1])
if not lane then
    return cjson.encode({ state = "unknown" })
end
local parts = lane_parts(lane)
local at = redis.call("HGET", key("lanes"), lane)
local scope = at
local pool = pool_of(parts.role)
if at == "ready" and pool then
    scope = blocked_at(parts) or "ready"
end
local answer = {
    state = "waiting", at = scope,
    position = redis.call("ZRANK", key("queue:" .. lane), ARGV[1]) + 1,
    duration = tonumber(redis.call("HGET", key("durations"), parts.tenant .. "|" .. parts.role) or "1"),
    seats = pool and tonumber(redis.call("HGET", key("caps"), "seat:" .. pool) or "0") or 0,
    taken = pool and used_of("seat:" .. pool) or 0,
}
if scope ~= "ready" and string.sub(scope, 1, 7) ~= "worker:" then
    answer.cap = cap_of(scope, parts)
    answer.used = used_of(scope)
end
return cjson.encode(answer)
