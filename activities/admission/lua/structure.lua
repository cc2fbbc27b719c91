-- Checks that the data of admission is consistent. If it is not, deletes the pointer, so that the leader rebuilds the data.
-- KEYS[1]  the pointer
-- ARGV[1]  cursor among the lanes; "0" for the first call, which also checks everything else
-- Returns  "closed", "broken: " and the inconsistent keys, or the next cursor ("0" at the end)

if not open() then
    return CLOSED
end
mark_due_places()
reindex()
write_back()

local function size(command, name)
    return redis.call(command, key(name))
end

-- Returns the sum of the values of a hash; nil if one of them is not a number.
local function sum_of(name)
    local sum = 0
    for _, value in ipairs(redis.call("HVALS", key(name))) do
        sum = sum and tonumber(value) and sum + tonumber(value)
    end
    return sum
end

local function differ(name, expected)
    local reply = redis.call("HGETALL", key(name))
    local fields = 0
    for _ in pairs(expected) do
        fields = fields + 1
    end
    for i = 1, #reply, 2 do
        if expected[reply[i]] ~= tonumber(reply[i + 1]) then
            return true
        end
    end
    return #reply ~= fields * 2
end

local function wrong_values()
    if redis.call("EXISTS", key("grants"), key("floors")) < 2 or not tonumber(redis.call("GET", key("grants"))) then
        return "grants, floors"
    end
    redis.call("GET", key("digest"))
    for _, value in ipairs(redis.call("HVALS", key("caps"))) do
        -- A cap is a number, a rate, or no limit.
        if not tonumber(value) and value ~= "none" and not string.match(value, "^[%d.e+-]+|[%d.e+-]+$") then
            return "caps"
        end
    end
    for _, name in ipairs({ "weights", "durations", "since_aged", "floors" }) do
        if not sum_of(name) then
            return name
        end
    end
    local pools = redis.call("HVALS", key("pools"))
    for _, pool in ipairs(pools) do
        if pool_of(pool) ~= pool then
            return "pools"
        end
    end
    return nil
end

-- Returns whether the set of files is stored unchanged and has at least this number of uses.
local function files_are_stored(parts, uses)
    return redis.sha1hex(files_of(parts)) == parts.files and number("file_uses", parts.tenant .. "|" .. parts.files, "0") >= uses
end

local function wrong_slots()
    local used, held, unstarted = {}, {}, 0
    local function add(to, name)
        to[name] = (to[name] or 0) + 1
    end
    for _, id in ipairs(redis.call("HKEYS", key("slots"))) do
        local slot = read_slot(id)
        local parts = lane_parts(slot.lane)
        for _, scope in ipairs(scopes_of(parts)) do
            add(used, scope)
        end
        if slot.pool ~= "" then
            add(used, "seat:" .. slot.pool)
        end
        add(held, parts.role)
        if parts.files ~= "" and not (field("holders:" .. parts.tenant, parts.files) and files_are_stored(parts, 1)) then
            return "holders, files"
        end
        if slot.started == 0 then
            unstarted = unstarted + 1
            if not redis.call("ZSCORE", key("unstarted"), id) then
                return "unstarted"
            end
        end
    end
    return (differ("used", used) and "used") or (differ("held", held) and "held")
        or (size("ZCARD", "unstarted") ~= unstarted and "unstarted") or nil
end

local function wrong_places()
    local entries = size("HLEN", "entries")
    if sum_of("waiting") ~= entries or sum_of("backlog") ~= entries then
        return "waiting, backlog"
    end
    local place_count, lanes, parked, indexed, express_tenants = 0, 0, 0, {}, 0
    for _, tenant in ipairs(redis.call("SMEMBERS", key("tenants"))) do
        local express = redis.call("ZRANGE", key("express:" .. tenant), 0, -1)
        for _, id in ipairs(express) do
            if redis.call("HEXISTS", key("entries"), id) == 0 then
                return "express:" .. tenant
            end
        end
        express_tenants = express_tenants + (#express > 0 and 1 or 0)
        for place, member in pairs(places_of(tenant)) do
            local role, band = place_parts(place)
            local lanes_of_place = lanes_key(tenant, role, band)
            if member ~= member_of(tenant, role, band) then
                return "places:" .. tenant
            end
            if member ~= "" then
                local index = ready_key(role, band, kind_of(member))
                local time = redis.call("ZSCORE", index, member)
                if not time or tonumber(time) ~= virtual_time(domain_of(role), tenant, band) then
                    return "ready:" .. place
                end
                indexed[index] = (indexed[index] or 0) + 1
            end
            place_count = place_count + 1
            lanes = lanes + redis.call("ZCARD", lanes_of_place)
            parked = parked + redis.call("ZCOUNT", lanes_of_place, "+inf", "+inf")
        end
        for lane in pairs(claims_of(tenant)) do
            if not field("lanes", lane) then
                return "claims:" .. tenant
            end
        end
        for digest in pairs(all_fields("holders:" .. tenant)) do
            if used_of(files_scope(tenant, digest)) == 0 then
                return "holders:" .. tenant
            end
        end
    end
    for index, members in pairs(indexed) do
        if redis.call("ZCARD", index) ~= members then
            return index
        end
    end
    for _, scope in ipairs(redis.call("SMEMBERS", key("parked"))) do
        parked = parked - size("SCARD", "parked:" .. scope)
    end
    if express_tenants ~= size("ZCARD", "express") then
        return "express"
    end
    if place_count ~= size("HLEN", "backlog") or lanes ~= size("HLEN", "lanes") or parked ~= 0 then
        return "tenants, lanes, parked"
    end
    return nil
end

-- Returns whether the files of a lane are not stored, or its claim differs from the band and score of its first waiter.
local function wrong_files(lane, parts, parked_at, head)
    local its_claim = claims_of(parts.tenant)[lane]
    return not files_are_stored(parts, size("ZCARD", "queue:" .. lane))
        or (its_claim and (string.sub(parked_at, 1, 6) ~= "files:" or its_claim.band ~= parts.band or its_claim.score ~= tonumber(head)))
end

local function wrong_lanes(some)
    for i = 1, #some, 2 do
        local lane, parked_at = some[i], some[i + 1]
        local parts, head = lane_parts(lane), head_score(lane)
        if not head then
            return "queue:" .. lane
        end
        local score = redis.call("ZSCORE", lanes_key(parts.tenant, parts.role, parts.band), lane)
        if score ~= (parked_at == "" and head or "inf") then
            return "lanes of " .. lane
        end
        if parked_at ~= "" and redis.call("SISMEMBER", key("parked:" .. parked_at), lane) == 0 then
            return "parked:" .. parked_at
        end
        if parts.files ~= "" and wrong_files(lane, parts, parked_at, head) then
            return "files of " .. lane
        end
    end
    return nil
end

local page = redis.call("HSCAN", key("lanes"), ARGV[1], "COUNT", 1000)
local wrong = ARGV[1] == "0" and (wrong_values() or wrong_slots() or wrong_places()) or wrong_lanes(page[2])
if wrong then
    redis.call("DEL", POINTER)
    return "broken: " .. wrong
end
return page[1]
