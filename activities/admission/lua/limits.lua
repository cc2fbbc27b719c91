-- Puts a new set of limits in force: caps, weights, and which roles share workers.
-- KEYS[1]  the pointer
-- ARGV[1]  generation to write into; empty for the one in force
-- ARGV[2]  digest of the limits; nothing happens when they are in force already
-- ARGV[3]  JSON {"caps": {scope: n}, "weights": {tenant: n}, "pools": {role: pool}}
-- Returns  1 if they changed, 0 if not, -1 when closed

if ARGV[1] ~= "" then
    use(ARGV[1])
elseif not open() then
    return -1
end
if redis.call("GET", key("digest")) == ARGV[2] then
    return 0
end
local limits = cjson.decode(ARGV[3])

local function replace(name, values)
    redis.call("DEL", key(name))
    for field, value in pairs(values) do
        redis.call("HSET", key(name), field, value)
    end
end

-- Every lane is indexed anew: it may belong to another pool now, and what it was parked at may have room.
local lanes = redis.call("HGETALL", key("lanes"))
for i = 1, #lanes, 2 do
    local lane, at = lanes[i], lanes[i + 1]
    local parts = lane_parts(lane)
    if at == "ready" then
        leave_ready(lane, parts, pool_of(parts.role))
    else
        redis.call("ZREM", key("parked:" .. at), lane)
    end
end

-- Seats in use belong to the pool that the role is in now.
local before = {}
for _, role in ipairs(redis.call("HKEYS", key("pools"))) do
    before[role] = pool_of(role)
end
replace("caps", limits.caps)
replace("weights", limits.weights)
replace("pools", limits.pools)
local moved = false
for role, pool in pairs(before) do
    moved = moved or limits.pools[role] ~= pool
end
if moved then
    local slots = redis.call("HKEYS", key("slots"))
    for _, id in ipairs(slots) do
        local slot = read_slot(id)
        local pool = pool_of(lane_parts(slot.lane).role) or slot.pool
        if slot.pool ~= "" and pool ~= slot.pool then
            add_used("seat:" .. slot.pool, -1)
            add_used("seat:" .. pool, 1)
            slot.pool = pool
            write_slot(id, slot)
        end
    end
end

for i = 1, #lanes, 2 do
    make_ready(lanes[i])
end
for _, pool in pairs(limits.pools) do
    redis.call("SADD", key("active"), pool)
end
redis.call("SET", key("digest"), ARGV[2])
return 1
