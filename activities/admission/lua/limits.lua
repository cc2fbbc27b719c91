-- Puts a new set of limits in force: caps, weights, and the pools of roles that share workers.
-- KEYS[1]  the pointer
-- ARGV[1]  generation to write to; empty for the one in force
-- ARGV[2]  digest of the limits; nothing changes if they are already in force
-- ARGV[3]  JSON {"caps": {scope: n}, "weights": {tenant: n}, "pools": {role: pool}}
-- ARGV[4]  the version of the limits in force before these were read from PostgreSQL; empty to replace any
-- Returns  1 if they changed, 0 if not, -1 if closed, -2 if others were put in force since, because those may be newer

if ARGV[1] ~= "" then
    use(ARGV[1])
    redis.call("SETNX", key("grants"), 0) -- every generation has these two keys, so structure.lua detects their loss
    redis.call("HSETNX", key("floors"), "", 0)
elseif not open() then
    return -1
end
-- The digest includes the sizes of the hashes, so that lost limits are written again.
local function digest()
    return ARGV[2] .. "|" .. redis.call("HLEN", key("caps")) .. "|" .. redis.call("HLEN", key("weights"))
        .. "|" .. redis.call("HLEN", key("pools"))
end
if redis.call("GET", key("digest")) == digest() then
    return 0
end
local version = tonumber(redis.call("GET", key("limits_version"))) or 0
if ARGV[4] and ARGV[4] ~= "" and tonumber(ARGV[4]) ~= version then
    return -2
end
redis.call("SET", key("limits_version"), version + 1)
local limits = cjson.decode(ARGV[3])

local function replace(name, values)
    redis.call("DEL", key(name))
    for field_name, value in pairs(values) do
        redis.call("HSET", key(name), field_name, value)
    end
    read_values[name] = nil
end

local function paused(role)
    return cap_of("role:" .. role) == 0
end

-- Find out which work the old limits held back, because tenants earn no credit for the time in which their work was held back.
local domains, were_paused, held_back = {}, {}, {}
local tenants = redis.call("SMEMBERS", key("tenants"))
for _, tenant in ipairs(tenants) do
    for place in pairs(places_of(tenant)) do
        local role = place_parts(place)
        domains[role], were_paused[role] = domain_of(role), paused(role)
        held_back[tenant .. "|" .. role] = full_own_scope(tenant, role)
    end
end
for _, role in ipairs(redis.call("HKEYS", key("pools"))) do
    domains[role] = domain_of(role)
end
local before = {}
for _, role in ipairs(redis.call("HKEYS", key("pools"))) do
    before[role] = pool_of(role)
end

replace("caps", limits.caps)
replace("weights", limits.weights)
replace("pools", limits.pools)

-- Count used seats in the current pool of their role. Pools change when workers come or go, also when a role without workers gets one.
local seats_moved = false
for role, pool in pairs(before) do
    seats_moved = seats_moved or limits.pools[role] ~= pool
end
for role in pairs(limits.pools) do
    seats_moved = seats_moved or not before[role]
end
if seats_moved then
    for _, id in ipairs(redis.call("HKEYS", key("slots"))) do
        local slot = read_slot(id)
        local pool = pool_of(lane_parts(slot.lane).role) or slot.pool
        if slot.pool ~= "" and pool ~= slot.pool then
            count("used", "seat:" .. slot.pool, -1)
            count("used", "seat:" .. pool, 1)
            slot.pool = pool
            write_slot(id, slot)
        end
    end
end

-- A role that has moved to another domain, or is no longer paused, starts at the virtual time of its domain. Tenants that wait for it, and
-- tenants whose own limits have room again, start at the virtual time of the role.
local level = {}
for role, domain in pairs(domains) do
    local moved = domain ~= domain_of(role)
    level[role] = moved or (were_paused[role] and not paused(role))
    for band = 1, BANDS do
        if moved then
            drop_field("floors", "role:" .. role .. "|" .. band)
        end
        if level[role] then
            raise_floor("role", role, band, floor_of("domain", domain_of(role), band))
        end
    end
end
for _, tenant in ipairs(tenants) do
    for place in pairs(places_of(tenant)) do
        local role, band = place_parts(place)
        if level[role] or (held_back[tenant .. "|" .. role] and not full_own_scope(tenant, role)) then
            raise_virtual_time(domain_of(role), tenant, band, floor_of("role", role, band))
        end
    end
    tenant_changed(tenant)
end
for _, scope in ipairs(redis.call("SMEMBERS", key("parked"))) do
    unpark(scope)
end
reindex()
redis.call("SET", key("digest"), digest())
return 1
