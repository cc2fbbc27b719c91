-- Contains the functions that all admission scripts share. It is prepended to each of them. See keys.py for the keys in Redis.
--
-- KEYS[1]  the pointer: the name of the generation in force. Admission is closed if it is missing (after a wipe of Redis), or names a
--          generation with another layout.
--
-- Terms
--   lane      the waiters of one tenant, role, band and lane key, in the order of their scores; they need exactly the same slots
--   lane key  empty, or "role or tenant|digest of files|pipeline|schedule|group"; the first part is the scope of the group
--   place     the lanes of one tenant, role and band
--   pool      a set of roles that share workers
--   seats     of a pool: the number of runs that its workers can execute at once
--   domain    a set of roles that share one count of virtual time: a pool, or all roles if there is a global cap
--
-- Waiters are granted by band, then by virtual time of the tenant, then by score. A full scope takes waiters out of this order:
--   scopes of a lane (group, files, paused origin)   the lane is parked until the scope may have room
--   scopes of a tenant (role, overall)               the tenant's places are removed from the index until the scope has room
--   scopes of all tenants (role, global, seats)      the index stays as it is; selection skips roles without room
-- A script first changes lanes and counts. It must call `reindex` before it selects waiters and before it ends.

local POINTER = KEYS[1]
local CLOSED = "closed"
local BANDS = 4
local generation, root
local time = redis.call("TIME")
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local read_values, read_in_full, unwritten = {}, {}, {} -- by hash; `unwritten` holds the values to write
local counts_read = {} -- pairs of tenant and role whose counts were read
-- The hashes places:<tenant> that were read, the changed places, and the places of which only the virtual time changed.
local places, dirty, retimed = {}, {}, {}

local function use(name)
    generation = name
    root = POINTER .. ":" .. name .. ":"
    read_values, read_in_full, unwritten, counts_read, places, dirty, retimed = {}, {}, {}, {}, {}, {}, {}
end

local function open()
    local current = redis.call("GET", POINTER)
    if not current or string.sub(current, 1, #LAYOUT + 1) ~= LAYOUT .. "-" then
        return false
    end
    use(current)
    return true
end

local function key(name)
    return root .. name
end

local function split(text, separator, parts)
    local result, from = {}, 1
    for _ = 1, parts - 1 do
        local at = string.find(text, separator, from, true)
        result[#result + 1] = string.sub(text, from, at - 1)
        from = at + 1
    end
    result[#result + 1] = string.sub(text, from)
    return result
end

-- Hashes ----------------------------------------------------------------------------------------------------------
-- Each field is read at most once per call. `read_fields` reads several with one command. At the end of the call, `write_back` writes all
-- changes, with one or two commands per hash. Code that reads such a hash with its own command after a change must call `write_back` first.

local AT_ONCE = 1000 -- fields per command, because Lua can pass only a few thousand arguments

local function known_fields(name)
    local known = read_values[name]
    if not known then
        known = {}
        read_values[name] = known
    end
    return known
end

-- Returns a field of a hash as text, or false.
local function field(name, field_name)
    local known = known_fields(name)
    if known[field_name] == nil then
        known[field_name] = not read_in_full[name] and redis.call("HGET", key(name), field_name)
    end
    return known[field_name]
end

local function read_fields(name, field_names)
    local known, missing = known_fields(name), {}
    for _, field_name in ipairs(field_names) do
        if known[field_name] == nil and not read_in_full[name] then
            missing[#missing + 1] = field_name
        end
    end
    for from = 1, #missing, AT_ONCE do
        local values = redis.call("HMGET", key(name), unpack(missing, from, math.min(from + AT_ONCE - 1, #missing)))
        for i, value in ipairs(values) do
            known[missing[from + i - 1]] = value
        end
    end
end

-- Returns all fields of a small hash, as text by name. The text is false if the field was deleted in this call.
local function all_fields(name)
    local known = known_fields(name)
    if not read_in_full[name] then
        local reply = redis.call("HGETALL", key(name))
        for i = 1, #reply, 2 do
            if known[reply[i]] == nil then
                known[reply[i]] = reply[i + 1]
            end
        end
        read_in_full[name] = true
    end
    return known
end

-- A `value` of false deletes the field.
local function put(name, field_name, value)
    unwritten[name] = unwritten[name] or {}
    unwritten[name][field_name] = value
end

local function set_field(name, field_name, value)
    known_fields(name)[field_name] = value
    put(name, field_name, value)
end

local function drop_field(name, field_name)
    set_field(name, field_name, false)
end

local function number(name, field_name, default)
    return tonumber(field(name, field_name) or default)
end

-- Adds an amount to a count and returns the result, which is at least 0. A count of 0 is deleted.
local function count(name, field_name, amount)
    local value = math.max(0, number(name, field_name, "0") + amount)
    set_field(name, field_name, value > 0 and string.format("%d", value))
    return value
end

local function write_back()
    local function send(command, name, arguments)
        for from = 1, #arguments, 2 * AT_ONCE do
            redis.call(command, key(name), unpack(arguments, from, math.min(from + 2 * AT_ONCE - 1, #arguments)))
        end
    end
    for name, values in pairs(unwritten) do
        local written, gone = {}, {}
        for field_name, value in pairs(values) do
            if value then
                written[#written + 1], written[#written + 2] = field_name, value
            else
                gone[#gone + 1] = field_name
            end
        end
        send("HSET", name, written)
        send("HDEL", name, gone)
    end
    unwritten = {}
end

-- Lanes and places ------------------------------------------------------------------------------------------------

local function lane_name(tenant, role, band, group)
    return tenant .. "|" .. role .. "|" .. band .. "|" .. group
end

local function lane_parts(lane)
    local p = split(lane, "|", 4)
    local parts = { tenant = p[1], role = p[2], band = tonumber(p[3]), group = p[4], key = "", files = "", pipeline = "", schedule = "" }
    if p[4] ~= "" then
        local g = split(p[4], "|", 5)
        parts.over_roles, parts.files, parts.pipeline, parts.schedule, parts.key = g[1] == "tenant", g[2], g[3], g[4], g[5]
    end
    return parts
end

-- Returns the key of a place's lanes. Each has the score of its first waiter, or an infinite score while it is parked.
local function lanes_key(tenant, role, band)
    return key("lanes:" .. role .. ":" .. band .. ":" .. tenant)
end

-- The tenants that share the role's limit of starts, and those with their own limit, have separate indexes, because one of the limits may be
-- full. Both the key of an index and its members end with its kind.
local SHARED, OWN = "", ":own"

local function ready_key(role, band, kind)
    return key("ready:" .. role .. ":" .. band .. kind)
end

local function tenant_of(member)
    return string.match(member, "|([^:]+)")
end

local function kind_of(member)
    return string.sub(member, -#OWN) == OWN and OWN or SHARED
end

-- Returns "role|band" -> member of the index ("" if the place is not in it), for each place with waiters of the tenant.
local function places_of(tenant)
    local known = places[tenant]
    if not known then
        known = {}
        local reply = redis.call("HGETALL", key("places:" .. tenant))
        for i = 1, #reply, 2 do
            known[reply[i]] = reply[i + 1]
        end
        places[tenant] = known
    end
    return known
end

local places_read = {}

local function place_parts(place)
    local p = places_read[place]
    if not p then
        p = split(place, "|", 2)
        p[2] = tonumber(p[2])
        places_read[place] = p
    end
    return p[1], p[2]
end

local function changed(tenant, role, band)
    dirty[tenant .. "|" .. role .. "|" .. band] = { tenant, role, band }
end

-- Marks the tenant's places as changed: all, or those of one role.
local function tenant_changed(tenant, only_role)
    for place in pairs(places_of(tenant)) do
        local role, band = place_parts(place)
        if not only_role or role == only_role then
            changed(tenant, role, band)
        end
    end
end

local function head_score(lane)
    return redis.call("ZRANGE", key("queue:" .. lane), 0, 0, "WITHSCORES")[2]
end

-- Scopes ----------------------------------------------------------------------------------------------------------

local function files_scope(tenant, digest)
    return "files:" .. tenant .. ":" .. digest
end

-- Returns the scopes of a group and of files. They belong to one tenant, and a lane is parked while one of them is full.
local function lane_scopes(lane)
    local scopes = {}
    if lane.key ~= "" then
        scopes[1] = "group:" .. lane.tenant .. ":" .. (lane.over_roles and "*" or lane.role) .. ":" .. lane.key
    end
    if lane.files ~= "" then
        scopes[#scopes + 1] = files_scope(lane.tenant, lane.files)
    end
    return scopes
end

-- Returns the scopes of the origin of a lane's work. Their only limit is 0, while the origin is paused, so their use is not counted.
local function origin_scopes(lane)
    local scopes = {}
    for _, kind in ipairs({ "pipeline", "schedule" }) do
        if lane[kind] ~= "" then
            scopes[#scopes + 1] = kind .. ":" .. lane.tenant .. ":" .. lane[kind]
        end
    end
    return scopes
end

-- Returns the scopes that limit a tenant: in a role, and overall.
local function own_scopes(tenant, role)
    return { "pair:" .. tenant .. ":" .. role, "tenant:" .. tenant }
end

-- Returns the scopes that limit all tenants together, except the seats.
local function shared_scopes(role)
    return { "role:" .. role, "global" }
end

-- Returns all scopes in which a waiter of the lane needs a slot, except the seats. The narrowest comes first.
local function scopes_of(lane)
    local scopes = lane_scopes(lane)
    for _, more in ipairs({ own_scopes(lane.tenant, lane.role), shared_scopes(lane.role) }) do
        for _, scope in ipairs(more) do
            scopes[#scopes + 1] = scope
        end
    end
    return scopes
end

-- Whether the group of this scope is that of a mailbox. Its key ends with an id, so a caller's own key is not taken for one by mistake.
local function is_conversation(scope, tenant, role)
    local group = string.sub(scope, #tenant + #role + 9)
    return #group == 44 and string.find(group, "^mailbox:[%x-]+$") ~= nil
end

-- Returns the cap of a scope, or nil. A scope without its own cap has the default of its kind, if there is one.
local function cap_of(scope, tenant, role)
    local cap = field("caps", scope)
    local kind = string.sub(scope, 1, 6)
    if kind == "files:" then
        cap = "1"
    elseif kind == "group:" and is_conversation(scope, tenant, role) then
        cap = "1" -- its runs must not overlap
    elseif not cap and kind == "group:" and string.sub(scope, 1, #tenant + 9) == "group:" .. tenant .. ":*:" then
        cap = field("caps", "groups:" .. tenant .. ":*") or "1"
    elseif not cap and kind == "group:" then
        cap = field("caps", "groups:" .. tenant .. ":" .. role) or field("caps", "groups:*:" .. role) or "1"
    elseif not cap and string.sub(scope, 1, 5) == "pair:" then
        cap = field("caps", "pair:*:" .. role)
    end
    return cap and assert(tonumber(cap), "a cap that is no number") or nil
end

-- Returns the cap of a scope without pauses, for work that a person allowed to run despite them.
local function cap_without_pauses(scope, tenant, role)
    local cap = field("caps", "past:" .. scope)
    if cap then
        return cap ~= "none" and tonumber(cap) or nil
    end
    return cap_of(scope, tenant, role)
end

local function used_of(scope)
    return number("used", scope, "0")
end

local function has_room(scope, tenant, role)
    local cap = cap_of(scope, tenant, role)
    return cap == nil or used_of(scope) < cap
end

local function first_full(scopes, tenant, role)
    for _, scope in ipairs(scopes) do
        if not has_room(scope, tenant, role) then
            return scope
        end
    end
    return nil
end

-- Rate limits -----------------------------------------------------------------------------------------------------
--   rate:<tenant>:<role>    a cap "per second|capacity": a token bucket; each start takes a token
--   starts:<role>           a cap: maximum of starts of all tenants per minute; a tenant with a cap "starts:<tenant>:<role>" has its own
--                           limit instead ("none": no limit). A start counts for a minute, so no period of a minute exceeds the limit
--   hold:<tenant>:<role>    nothing starts before a time that the provider set; urgent work and other work have separate holds
-- The time at which a rate limit has room again is known in advance. `due` contains these times for the waiting places.

local MINUTE = 60000
local LATE_MS = 25 -- The bucket holds the tokens of so many ms above its capacity, so a start that is late by less loses no token.
local windows = {} -- starts within the last minute, by scope

-- Returns the available tokens, the tokens that a start needs, and the rate per second; nil without a rate limit.
local function tokens_of(tenant, role)
    local limit = field("caps", "rate:" .. tenant .. ":" .. role)
    if not limit then
        return nil
    end
    local p = split(limit, "|", 2)
    local per_second, capacity = tonumber(p[1]), tonumber(p[2])
    local kept, tokens = field("tokens", tenant .. "|" .. role), capacity
    if kept then
        local k = split(kept, "|", 2)
        local most = capacity + per_second * LATE_MS / 1000
        tokens = math.min(most, tonumber(k[1]) + math.max(0, now - tonumber(k[2])) * per_second / 1000)
    end
    return tokens, math.min(1, capacity), per_second
end

local function put_tokens(tenant, role, tokens)
    set_field("tokens", tenant .. "|" .. role, string.format("%.6f|%d", tokens, now))
end

-- Returns the tenant's own limit of starts, as text, or false.
local function own_starts(tenant, role)
    return field("caps", "starts:" .. tenant .. ":" .. role)
end

-- Returns the scope that counts the tenant's starts of the role, and its limit; nil as scope if there is none.
local function window_of(tenant, role)
    local own = own_starts(tenant, role)
    if own then
        return own ~= "none" and "starts:" .. tenant .. ":" .. role or nil, tonumber(own)
    end
    local limit = field("caps", "starts:" .. role)
    return limit and "starts:" .. role or nil, tonumber(limit or "0")
end

local function starts_in(scope)
    if not windows[scope] then
        windows[scope] = redis.call("ZCOUNT", key(scope), "(" .. string.format("%d", now - MINUTE), "+inf")
    end
    return windows[scope]
end

-- Returns the ms at which the window has room for another start; nil if it has room now.
local function window_due(scope, limit)
    if starts_in(scope) < limit then
        return nil
    end
    -- Count from the newest start, because starts older than a minute may still be stored.
    return tonumber(redis.call("ZRANGE", key(scope), -limit, -limit, "WITHSCORES")[2]) + MINUTE
end

local function hold_field(tenant, role, band)
    return tenant .. "|" .. role .. "|" .. (band == 1 and "urgent" or "rest")
end

-- Returns the first full rate limit of the tenant, and the ms at which it will have room.
local function full_own_rate_limit(tenant, role, band)
    local hold = field("holds", hold_field(tenant, role, band))
    if hold then
        local due = tonumber(split(hold, "|", 2)[1])
        if due > now then
            return "hold:" .. tenant .. ":" .. role, due
        end
    end
    local tokens, needed, per_second = tokens_of(tenant, role)
    if tokens and tokens + 0.000001 < needed then
        return "rate:" .. tenant .. ":" .. role, now + math.max(1, math.ceil((needed - tokens) / per_second * 1000))
    end
    local own = own_starts(tenant, role)
    if own and own ~= "none" then
        local due = window_due("starts:" .. tenant .. ":" .. role, tonumber(own))
        if due then
            return "starts:" .. tenant .. ":" .. role, due
        end
    end
    return nil
end

-- Returns the same for the limit that tenants without their own share in the role.
local function full_shared_rate_limit(role)
    local limit = field("caps", "starts:" .. role)
    local due = limit and window_due("starts:" .. role, tonumber(limit))
    if due then
        return "starts:" .. role, due
    end
    return nil
end

-- Returns the same for all rate limits that apply to the tenant.
local function full_rate_limit(tenant, role, band)
    local scope, due = full_own_rate_limit(tenant, role, band)
    if scope or own_starts(tenant, role) then
        return scope, due
    end
    return full_shared_rate_limit(role)
end

-- Counts a start against the rate limits.
local function count_start(tenant, role, grant)
    local tokens = tokens_of(tenant, role)
    if tokens then
        put_tokens(tenant, role, tokens - 1)
    end
    local scope = window_of(tenant, role)
    if scope then
        windows[scope] = starts_in(scope) + 1
        redis.call("ZREMRANGEBYSCORE", key(scope), "-inf", now - MINUTE)
        redis.call("ZADD", key(scope), now, grant)
        redis.call("PEXPIRE", key(scope), MINUTE)
    end
    if tokens or own_starts(tenant, role) then
        tenant_changed(tenant, role)
    end
end

-- Removes a start from the rate limits, because the grant started nothing.
local function uncount_start(tenant, role, grant)
    local tokens = tokens_of(tenant, role)
    if tokens then
        put_tokens(tenant, role, tokens + 1)
    end
    -- Remove it from both windows: a limit that is not in force now may be in force again within the minute.
    for _, scope in ipairs({ "starts:" .. role, "starts:" .. tenant .. ":" .. role }) do
        if redis.call("ZREM", key(scope), grant) == 1 then
            windows[scope] = nil
        end
    end
    tenant_changed(tenant, role)
end

-- Holds the tenant's work of the role for `ms`, and with `urgent` also its urgent work. `code` and `holder` are the reason.
local function hold_back(tenant, role, urgent, ms, code, holder)
    for band = 1, 2 do
        if band == 2 or urgent then
            local name = hold_field(tenant, role, band)
            local known = field("holds", name)
            if not known or tonumber(split(known, "|", 2)[1]) < now + ms then
                set_field("holds", name, string.format("%d", now + ms) .. "|" .. code .. "|" .. holder)
            end
        end
    end
    tenant_changed(tenant, role)
end

local function full_own_scope(tenant, role)
    return first_full(own_scopes(tenant, role), tenant, role)
end

-- Marks the places that a limit of the tenant affects, after the limit became full or has room again.
local function own_limit_changed(tenant, role)
    tenant_changed(tenant, not field("caps", "tenant:" .. tenant) and role or nil)
end

local function pool_of(role)
    return field("pools", role)
end

local function seats_of(pool)
    return number("caps", "seat:" .. pool, "0")
end

local function seats_left(pool)
    return seats_of(pool) - used_of("seat:" .. pool)
end

-- Returns whether the role has workers, a free seat, and room in the caps that all tenants share.
local function role_has_room(role)
    local pool = pool_of(role)
    return pool and seats_left(pool) > 0 and not first_full(shared_scopes(role))
end

-- Fairness --------------------------------------------------------------------------------------------------------
-- A tenant's virtual time is its use in slot-seconds, divided by its weight. All use counts in each band, but each band has its own floor
-- for tenants that join. Otherwise waiting work of low priority could lower the virtual time at which urgent work of other tenants starts.

-- Returns the domain of a role, which contains the roles that compete with it. With a global cap, all roles compete.
local function domain_of(role)
    return field("caps", "global") and "*" or pool_of(role) or role
end

-- Reads all counts of a tenant and role with a few commands, because waiters and slots need most of them.
local function read_ahead(tenant, role)
    local name = tenant .. "|" .. role
    if counts_read[name] then
        return
    end
    counts_read[name] = true
    local pool, caps = pool_of(role), own_scopes(tenant, role)
    for _, scope in ipairs(shared_scopes(role)) do
        caps[#caps + 1] = scope
    end
    caps[#caps + 1] = pool and "seat:" .. pool or nil
    read_fields("used", caps)
    for _, scope in ipairs({ "pair:*:" .. role, "rate:" .. tenant .. ":" .. role, "starts:" .. tenant .. ":" .. role, "starts:" .. role }) do
        caps[#caps + 1] = scope
    end
    read_fields("caps", caps)
    local domain, times, floors, backlog = domain_of(role), {}, {}, {}
    for band = 1, BANDS do
        times[band], backlog[band] = tenant .. "|" .. band, name .. "|" .. band
        floors[2 * band - 1], floors[2 * band] = "role:" .. role .. "|" .. band, "domain:" .. domain .. "|" .. band
    end
    read_fields("times:" .. domain, times)
    read_fields("floors", floors)
    read_fields("backlog", backlog)
    read_fields("holds", { hold_field(tenant, role, 1), hold_field(tenant, role, 2) })
    all_fields("waiting")
end

local function virtual_time(domain, tenant, band)
    return number("times:" .. domain, tenant .. "|" .. band, "0")
end

local function raise_virtual_time(domain, tenant, band, least)
    if virtual_time(domain, tenant, band) < least then
        set_field("times:" .. domain, tenant .. "|" .. band, string.format("%.6f", least))
    end
end

local function charge(role, tenant, seconds)
    local domain = domain_of(role)
    local added = seconds / number("weights", tenant, "1")
    for band = 1, BANDS do
        local value = virtual_time(domain, tenant, band) + added
        set_field("times:" .. domain, tenant .. "|" .. band, string.format("%.6f", value))
    end
    for place, member in pairs(places_of(tenant)) do
        if member ~= "" and domain_of((place_parts(place))) == domain then
            retimed[tenant .. "|" .. place] = { tenant, place }
        end
    end
end

-- Returns the virtual time of the tenant served last in this band of a role or a domain. It never decreases.
local function floor_of(kind, name, band)
    return number("floors", kind .. ":" .. name .. "|" .. band, "0")
end

local function raise_floor(kind, name, band, least)
    if floor_of(kind, name, band) < least then
        set_field("floors", kind .. ":" .. name .. "|" .. band, string.format("%.6f", least))
    end
end

-- Raises the virtual time of a tenant that had no waiting work of this band in the domain, because absence earns no credit. It becomes at
-- least the floor of the role. `alone`: nothing else waits for the role in this band, so the floor of the role is first raised
-- to that of the domain.
local function join(tenant, role, band, alone)
    local domain = domain_of(role)
    if alone then
        raise_floor("role", role, band, floor_of("domain", domain, band))
    end
    for place in pairs(places_of(tenant)) do
        local other, its_band = place_parts(place)
        if its_band == band and domain_of(other) == domain and number("backlog", tenant .. "|" .. place, "0") > 0 then
            return
        end
    end
    raise_virtual_time(domain, tenant, band, floor_of("role", role, band))
end

-- The index -------------------------------------------------------------------------------------------------------
-- ready:<role>:<band> orders the tenants by virtual time, see `ready_key`. A member begins with the score of the tenant's first lane, so that the lower
-- score comes first at equal virtual time.

-- Returns the member that the place should have in the index: "" if it should have none, nil if nothing waits in the place. If a rate limit
-- is full, also returns the ms at which it has room.
local function member_of(tenant, role, band)
    local head = redis.call("ZRANGE", lanes_key(tenant, role, band), 0, 0, "WITHSCORES")
    if #head == 0 then
        return nil
    elseif head[2] == "inf" or full_own_scope(tenant, role) then
        return ""
    end
    local _, due = full_own_rate_limit(tenant, role, band)
    if due then
        return "", due
    end
    return string.format("%015.0f|%s", tonumber(head[2]), tenant) .. (own_starts(tenant, role) and OWN or SHARED)
end

local function reindex()
    for _, place in pairs(dirty) do
        local tenant, role, band = place[1], place[2], place[3]
        local name, mine = role .. "|" .. band, places_of(tenant)
        local member, due = member_of(tenant, role, band)
        local before = mine[name]
        if due then
            redis.call("ZADD", key("due"), due, tenant .. "|" .. role .. "|" .. band)
        end
        if not member then
            if before then
                put("places:" .. tenant, name, false)
                mine[name] = nil
            end
            if before and before ~= "" then
                redis.call("ZREM", ready_key(role, band, kind_of(before)), before)
            end
            if next(mine) == nil then
                redis.call("SREM", key("tenants"), tenant)
            end
        else
            if before and before ~= "" and before ~= member then
                redis.call("ZREM", ready_key(role, band, kind_of(before)), before)
            end
            if member ~= "" then
                redis.call("ZADD", ready_key(role, band, kind_of(member)), virtual_time(domain_of(role), tenant, band), member)
            end
            if next(mine) == nil then
                redis.call("SADD", key("tenants"), tenant)
            end
            if before ~= member then
                put("places:" .. tenant, name, member)
                mine[name] = member
            end
        end
    end
    for name, place in pairs(retimed) do
        local member = not dirty[name] and places_of(place[1])[place[2]]
        if member and member ~= "" then
            local role, band = place_parts(place[2])
            redis.call("ZADD", ready_key(role, band, kind_of(member)), virtual_time(domain_of(role), place[1], band), member)
        end
    end
    dirty, retimed = {}, {}
end

-- File scopes -----------------------------------------------------------------------------------------------------
-- Work on files waits while other work runs on files that may overlap, see files.lua. Work that waits for files gets a *claim* to them,
-- and later work on overlapping files waits as well. Otherwise work on few files could overtake work on many files forever.

local MOST_CLAIMS = 32 -- of a tenant
local claims = {} -- by tenant: lane -> { band, score }, or false
local unclaimed = {} -- by tenant: the lanes that lost their claim in this call, because they compete again

local function claims_of(tenant)
    if claims[tenant] == nil then
        local reply = redis.call("HGETALL", key("claims:" .. tenant))
        claims[tenant] = {}
        for i = 1, #reply, 2 do
            local p = split(reply[i + 1], "|", 2)
            claims[tenant][reply[i]] = { band = tonumber(p[1]), score = tonumber(p[2]) }
        end
    end
    return claims[tenant]
end

local function claim(lane, parts)
    local known = claims_of(parts.tenant)
    local size = 0
    for _ in pairs(known) do
        size = size + 1
    end
    if size < MOST_CLAIMS then
        local score = tonumber(head_score(lane))
        known[lane] = { band = parts.band, score = score }
        redis.call("HSET", key("claims:" .. parts.tenant), lane, parts.band .. "|" .. string.format("%.0f", score))
    end
end

-- Returns whether the lane had a claim.
local function drop_claim(lane, parts)
    if parts.files == "" or not claims_of(parts.tenant)[lane] then
        return false
    end
    claims[parts.tenant][lane] = nil
    redis.call("HDEL", key("claims:" .. parts.tenant), lane)
    return true
end

-- The text of a set of files is stored while waiting or running work uses it.
local function add_file_use(parts, text)
    local name = parts.tenant .. "|" .. parts.files
    if count("file_uses", name, 1) == 1 or not field("files", name) then
        set_field("files", name, text)
    end
end

local function remove_file_use(parts)
    local name = parts.tenant .. "|" .. parts.files
    if count("file_uses", name, -1) == 0 then
        drop_field("files", name)
    end
end

local function files_of(parts)
    return parts.files ~= "" and field("files", parts.tenant .. "|" .. parts.files) or ""
end

local function hold_files(id, parts, text)
    add_file_use(parts, text)
    set_field("holders:" .. parts.tenant, parts.files, id)
end

local function release_files(parts)
    if used_of(files_scope(parts.tenant, parts.files)) == 0 then
        drop_field("holders:" .. parts.tenant, parts.files)
    end
    remove_file_use(parts)
end

local function park(lane, parts, scope)
    set_field("lanes", lane, scope)
    redis.call("SADD", key("parked"), scope)
    redis.call("SADD", key("parked:" .. scope), lane)
    redis.call("ZADD", lanes_key(parts.tenant, parts.role, parts.band), "XX", "+inf", lane)
    changed(parts.tenant, parts.role, parts.band)
    reindex() -- otherwise the lane would be selected again, and parked at a second scope
end

-- Returns the scope of files in use by running work that may overlap those of the lane, or nil.
local function files_in_use(parts)
    local mine = files_of(parts)
    for digest, holder in pairs(all_fields("holders:" .. parts.tenant)) do
        if holder and files_may_meet(mine, field("files", parts.tenant .. "|" .. digest) or "", parts.tenant) then
            return files_scope(parts.tenant, digest)
        end
    end
    return nil
end

-- Parks lanes that lost their claims in this call and whose files are in use again, and gives them claims again. Otherwise work that is
-- checked earlier could overtake them.
local function claim_again(tenant)
    for lane in pairs(unclaimed[tenant] or {}) do
        local parts = lane_parts(lane)
        local scope = head_score(lane) and field("lanes", lane) == "" and files_in_use(parts)
        if scope then
            claim(lane, parts)
            park(lane, parts, scope)
            unclaimed[tenant][lane] = nil
        end
    end
end

-- Returns the scope of files that may overlap those of the lane, and are in use or claimed by earlier work; nil without one.
local function blocking_files(lane, parts)
    local used = files_in_use(parts)
    if used then
        return used
    end
    claim_again(parts.tenant)
    local mine, score = files_of(parts), tonumber(head_score(lane))
    for other, place in pairs(claims_of(parts.tenant)) do
        if other ~= lane and (place.band < parts.band or (place.band == parts.band and place.score < score)) then
            local claimant = lane_parts(other)
            -- A claim blocks other work only if its own work waits for nothing but the files.
            if role_has_room(claimant.role) and not first_full(own_scopes(claimant.tenant, claimant.role), claimant.tenant, claimant.role)
                and not first_full(origin_scopes(claimant), claimant.tenant, claimant.role)
                and not full_rate_limit(claimant.tenant, claimant.role, claimant.band)
                and files_may_meet(mine, files_of(claimant), parts.tenant) then
                return files_scope(parts.tenant, claimant.files)
            end
        end
    end
    return nil
end

-- Returns the full scope because of which the lane must be parked, or nil.
local function full_lane_scope(lane, parts)
    return first_full(origin_scopes(parts), parts.tenant, parts.role) or first_full(lane_scopes(parts), parts.tenant, parts.role)
        or (parts.files ~= "" and blocking_files(lane, parts) or nil)
end

local function remove_parked_lane(lane, scope)
    redis.call("SREM", key("parked:" .. scope), lane)
    if redis.call("EXISTS", key("parked:" .. scope)) == 0 then
        redis.call("SREM", key("parked"), scope)
    end
end

-- Lets a parked lane compete again. At its turn it is parked again if a scope is still full. If the lane had a claim, returns the scope at
-- which other lanes wait for this claim.
local function unpark_lane(lane)
    local parts = lane_parts(lane)
    set_field("lanes", lane, "")
    redis.call("ZADD", lanes_key(parts.tenant, parts.role, parts.band), "XX", head_score(lane), lane)
    changed(parts.tenant, parts.role, parts.band)
    if not drop_claim(lane, parts) then
        return nil
    end
    unclaimed[parts.tenant] = unclaimed[parts.tenant] or {}
    unclaimed[parts.tenant][lane] = true
    return files_scope(parts.tenant, parts.files)
end

-- Lets all lanes that are parked at a scope compete again, and the lanes that wait for their claims.
local function unpark(scope)
    local lanes = redis.call("SMEMBERS", key("parked:" .. scope))
    if #lanes == 0 then
        return
    end
    local freed = {}
    redis.call("DEL", key("parked:" .. scope))
    redis.call("SREM", key("parked"), scope)
    for _, lane in ipairs(lanes) do
        freed[#freed + 1] = unpark_lane(lane)
    end
    for _, other in ipairs(freed) do
        unpark(other)
    end
end

-- Must be called when the first waiter of a lane parked at `scope` has changed. If the lane waits for files, it competes again, because the
-- order of the first waiters decides which claims block which work.
local function first_waiter_changed(lane, scope)
    if string.sub(scope, 1, 6) == "files:" then
        remove_parked_lane(lane, scope)
        local freed = unpark_lane(lane)
        if freed then
            unpark(freed)
        end
    end
end

-- Waiting -----------------------------------------------------------------------------------------------------------
-- An entry is "since ms|lane". The time decides about ageing, the score about the order.

-- Work that a person requested to run despite pauses, by tenant, and the tenants that have such work. New tenants come last.
local function add_express(tenant, id, at)
    redis.call("ZADD", key("express:" .. tenant), "NX", at, id)
    local last = redis.call("ZRANGE", key("express"), -1, -1, "WITHSCORES")[2] or 0
    redis.call("ZADD", key("express"), "NX", last + 1, tenant)
end

local function drop_express(tenant, id)
    if redis.call("ZREM", key("express:" .. tenant), id) == 1 and redis.call("EXISTS", key("express:" .. tenant)) == 0 then
        redis.call("ZREM", key("express"), tenant)
    end
end

local function is_express(tenant, id)
    return redis.call("ZSCORE", key("express:" .. tenant), id)
end

-- Removes a waiter from its lane, parked or not. Returns its lane, parts of the lane, score, since and files. If the caller knows that it
-- is the first waiter of the lane, `first` holds its score and the score of the next waiter, if there is one.
local function dequeue(id, first)
    local entry = split(field("entries", id), "|", 2)
    local lane, since = entry[2], tonumber(entry[1])
    local parts, queue = lane_parts(lane), key("queue:" .. lane)
    local score = first and first[1] or tonumber(redis.call("ZSCORE", queue, id))
    drop_field("entries", id)
    drop_express(parts.tenant, id)
    count("waiting", parts.role .. "|" .. parts.band, -1)
    count("backlog", parts.tenant .. "|" .. parts.role .. "|" .. parts.band, -1)
    redis.call("ZREM", queue, id)
    local parked_at, next_score = field("lanes", lane), nil
    if first then
        next_score = first[2]
    else
        next_score = head_score(lane)
    end
    local index = lanes_key(parts.tenant, parts.role, parts.band)
    if not next_score then
        drop_field("lanes", lane)
        redis.call("ZREM", index, lane)
        if parked_at ~= "" then
            remove_parked_lane(lane, parked_at)
        end
        if drop_claim(lane, parts) then
            unpark(files_scope(parts.tenant, parts.files))
        end
    elseif parked_at == "" then
        redis.call("ZADD", index, "XX", next_score, lane)
    elseif score < tonumber(next_score) then
        first_waiter_changed(lane, parked_at)
    end
    changed(parts.tenant, parts.role, parts.band)
    local files = files_of(parts)
    if parts.files ~= "" then
        remove_file_use(parts)
    end
    return { lane = lane, parts = parts, score = score, since = since, files = files }
end

-- Returns whether the activity waits in this lane with this score.
local function is_in_place(id, lane, score)
    local entry = field("entries", id)
    return entry and split(entry, "|", 2)[2] == lane and tonumber(redis.call("ZSCORE", key("queue:" .. lane), id)) == tonumber(score)
end

-- Adds a waiter. Changes nothing if the activity already waits there, or holds an unstarted slot. If it waits in another lane, it moves,
-- because its priority or lane key has changed. If it holds a started slot, its run has ended and this offer has overtaken the release, so
-- the offer is stored until the release arrives. `express`: the ms at which a person requested to run it now, else 0.
local function enqueue(id, tenant, role, band, score, group, since, files, express)
    local slot = field("slots", id)
    if slot then
        if split(slot, "|", 3)[2] ~= "0" then
            set_field("again", id, cjson.encode({ tenant, role, band, score, group, since, files, express }))
        end
        return
    end
    read_ahead(tenant, role)
    band = tonumber(band)
    local lane = lane_name(tenant, role, band, group)
    if is_in_place(id, lane, score) then
        if express > 0 then
            add_express(tenant, id, express)
        end
        return
    end
    if field("entries", id) then
        dequeue(id)
    end
    if express > 0 then
        add_express(tenant, id, express)
    end
    set_field("entries", id, string.format("%d", since) .. "|" .. lane)
    if files and files ~= "" then
        add_file_use(lane_parts(lane), files)
    end
    join(tenant, role, band, count("waiting", role .. "|" .. band, 1) == 1)
    count("backlog", tenant .. "|" .. role .. "|" .. band, 1)
    redis.call("ZADD", key("queue:" .. lane), score, id)
    local parked_at = field("lanes", lane) or ""
    if parked_at == "" then
        set_field("lanes", lane, "")
        redis.call("ZADD", lanes_key(tenant, role, band), "LT", score, lane)
    elseif redis.call("ZRANK", key("queue:" .. lane), id) == 0 then
        first_waiter_changed(lane, parked_at)
    end
    changed(tenant, role, band)
    if not places_of(tenant)[role .. "|" .. band] then
        reindex() -- because `join` needs the place when the tenant's next waiter is added
    end
end

-- Slots ---------------------------------------------------------------------------------------------------------------
-- A slot is "grant|started ms or 0|granted ms|charged seconds|pool or empty|since ms|score|lane". The pool is empty once the seat is
-- released. The last three values come from the waiter, so that audit.lua can queue it again.

local function read_slot(id)
    local text = field("slots", id)
    if not text then
        return nil
    end
    local p = split(text, "|", 8)
    return {
        grant = p[1], started = tonumber(p[2]), granted = tonumber(p[3]), charged = tonumber(p[4]), pool = p[5],
        since = tonumber(p[6]), score = tonumber(p[7]), lane = p[8],
    }
end

local function write_slot(id, slot)
    set_field("slots", id, table.concat({
        slot.grant, string.format("%d", slot.started), string.format("%d", slot.granted),
        string.format("%.3f", slot.charged), slot.pool, string.format("%d", slot.since),
        string.format("%d", slot.score), slot.lane,
    }, "|"))
end

local function start_slot(id, slot)
    slot.started = now
    write_slot(id, slot)
    redis.call("ZREM", key("unstarted"), id)
end

local function expected_seconds(tenant, role)
    return number("durations", tenant .. "|" .. role, "0.1")
end

-- Takes a slot in each scope and a seat of the pool, and charges the tenant for the expected time. `waiter` is a result of `dequeue`.
local function hold(id, waiter, pool, grant, started)
    local parts = waiter.parts
    for _, scope in ipairs(scopes_of(parts)) do
        count("used", scope, 1)
    end
    if pool ~= "" then
        count("used", "seat:" .. pool, 1)
    end
    local expected = expected_seconds(parts.tenant, parts.role)
    charge(parts.role, parts.tenant, expected)
    write_slot(id, {
        grant = grant, started = started, granted = now, charged = expected, pool = pool,
        since = waiter.since, score = waiter.score, lane = waiter.lane,
    })
    count("held", parts.role, 1)
    if parts.files ~= "" then
        hold_files(id, parts, waiter.files)
    end
    if started == 0 then
        redis.call("ZADD", key("unstarted"), now, id)
    end
    if full_own_scope(parts.tenant, parts.role) then
        own_limit_changed(parts.tenant, parts.role)
    end
end

-- Releases the seat and keeps all other slots, because the agent has accepted the work and no worker waits for it.
local function release_seat(id, slot)
    if slot.pool ~= "" then
        count("used", "seat:" .. slot.pool, -1)
        slot.pool = ""
        write_slot(id, slot)
    end
end

-- Replaces the charge for the expected time by one for the time that the run took.
local function settle_charge(tenant, role, slot, unused)
    local actual = slot.started > 0 and (now - slot.started) / 1000 or 0
    charge(role, tenant, actual - slot.charged)
    if slot.started > 0 and not unused then
        local name = tenant .. "|" .. role
        local before = number("durations", name, actual)
        set_field("durations", name, string.format("%.4f", before * 0.8 + actual * 0.2))
    end
end

-- Releases all slots of an activity. If `grant` is not empty, it must be the one that holds them, so that a late worker cannot release the
-- slots of another run.
local function release(id, grant, unused)
    local slot = read_slot(id)
    if not slot or (grant ~= "" and slot.grant ~= grant) then
        return false
    end
    local parts = lane_parts(slot.lane)
    read_ahead(parts.tenant, parts.role)
    local was_full = full_own_scope(parts.tenant, parts.role)
    drop_field("slots", id)
    if slot.started == 0 then
        redis.call("ZREM", key("unstarted"), id)
    end
    count("held", parts.role, -1)
    if slot.pool ~= "" then
        count("used", "seat:" .. slot.pool, -1)
    end
    if slot.started == 0 or unused then
        uncount_start(parts.tenant, parts.role, slot.grant)
    end
    for _, scope in ipairs(scopes_of(parts)) do
        count("used", scope, -1)
    end
    if parts.files ~= "" then
        release_files(parts)
    end
    for _, scope in ipairs(lane_scopes(parts)) do
        unpark(scope)
    end
    settle_charge(parts.tenant, parts.role, slot, unused)
    if was_full then
        -- The tenant earns no credit for the time during which its own limit held it back.
        raise_virtual_time(domain_of(parts.role), parts.tenant, parts.band, floor_of("role", parts.role, parts.band))
        own_limit_changed(parts.tenant, parts.role)
    end
    local again = field("again", id)
    if again then
        drop_field("again", id)
        enqueue(id, unpack(cjson.decode(again), 1, 8))
    end
    return true
end

-- Granting ------------------------------------------------------------------------------------------------------------

local waiting_roles, candidates, choices -- roles by domain and band, the first waiters by index, the choice of each domain

local function prepare_candidates()
    waiting_roles, candidates, choices = {}, {}, {}
    local roles, caps, used = {}, { "global" }, { "global" }
    for place, waiting in pairs(all_fields("waiting")) do
        if waiting then
            roles[#roles + 1] = (place_parts(place))
        end
    end
    read_fields("pools", roles)
    for _, role in ipairs(roles) do
        local scope, pool = "role:" .. role, pool_of(role)
        caps[#caps + 1], caps[#caps + 2], used[#used + 1] = scope, "starts:" .. role, scope
        if pool then
            caps[#caps + 1], used[#used + 1] = "seat:" .. pool, "seat:" .. pool
        end
    end
    read_fields("caps", caps)
    read_fields("used", used)
    for place, waiting in pairs(all_fields("waiting")) do
        if waiting then
            local role, band = place_parts(place)
            local domain = domain_of(role)
            waiting_roles[domain] = waiting_roles[domain] or { {}, {}, {}, {} }
            table.insert(waiting_roles[domain][band], role)
        end
    end
end

-- Returns the candidate of an index: the first lane with room in its own scopes, of the first tenant. Parks lanes without room.
-- Returns false without a candidate.
local function head_of(role, band, kind)
    local name = ready_key(role, band, kind)
    while candidates[name] == nil do
        local first = redis.call("ZRANGE", name, 0, 0, "WITHSCORES")
        if #first == 0 then
            candidates[name] = false
            break
        end
        local tenant = tenant_of(first[1])
        local lane = redis.call("ZRANGE", lanes_key(tenant, role, band), 0, 0)[1]
        local parts = lane_parts(lane)
        local scope = full_lane_scope(lane, parts)
        if scope then
            if parts.files ~= "" and string.sub(scope, 1, 6) == "files:" then
                claim(lane, parts)
            end
            park(lane, parts, scope)
        else
            candidates[name] = {
                tenant = tenant, role = role, band = band, lane = lane,
                time = tonumber(first[2]), score = tonumber(string.sub(first[1], 1, 15)),
            }
        end
    end
    return candidates[name]
end

local function comes_before(one, other)
    if one.time ~= other.time then
        return one.time < other.time
    elseif one.score ~= other.score then
        return one.score < other.score
    elseif one.tenant ~= other.tenant then
        return one.tenant < other.tenant
    end
    return one.role < other.role
end

local function first_in(domain, band)
    local best
    local function consider(head)
        if head and (not best or comes_before(head, best)) then
            best = head
        end
    end
    for _, role in ipairs(waiting_roles[domain][band]) do
        if role_has_room(role) then
            consider(not full_shared_rate_limit(role) and head_of(role, band, SHARED))
            consider(head_of(role, band, OWN))
        end
    end
    return best
end

local function waiting_ms(head)
    if not head.since then
        head.id = redis.call("ZRANGE", key("queue:" .. head.lane), 0, 0)[1]
        head.since = tonumber(split(field("entries", head.id), "|", 2)[1])
    end
    return now - head.since
end

-- Chooses between the candidate `first` and the `aged` ones, which are in less urgent bands and have waited beyond the ageing bound. Aged
-- work of a band gets one of `share` grants, so that nothing starves. A counter for each band records how often its aged work was passed
-- over. The first candidate of the band is granted, so ageing never changes the order of tenants within a band.
local function turn(counter, first, aged, share)
    local next_one, longest = first, -1
    for _, head in ipairs(aged) do
        if number("since_aged", counter .. "|" .. head.band, "0") + 1 >= share and waiting_ms(head) > longest then
            next_one, longest = head, waiting_ms(head)
        end
    end
    return { counter = counter, next = next_one, first = first, aged = aged }
end

local function set_passed_over(counter, band, value)
    local before = number("since_aged", counter .. "|" .. band, "0")
    if before ~= value then
        count("since_aged", counter .. "|" .. band, value - before)
    end
end

local function record_turn(choice)
    if choice.next ~= choice.first then
        for band = 1, BANDS do
            set_passed_over(choice.counter, band, 0)
        end
        return
    end
    set_passed_over(choice.counter, choice.next.band, 0)
    for _, head in ipairs(choice.aged) do
        set_passed_over(choice.counter, head.band, number("since_aged", choice.counter .. "|" .. head.band, "0") + 1)
    end
end

local function choose(domain, ageing_ms, share)
    local first
    local aged = {}
    for band = 1, BANDS do
        local head = first_in(domain, band)
        if head and not first then
            first = head
        elseif head and waiting_ms(head) >= ageing_ms then
            aged[#aged + 1] = head
        end
    end
    return first and turn("domain:" .. domain, first, aged, share)
end

-- Chooses between the domains: by band, then by score, with the same guaranteed share for aged work. Domains share only the limits of
-- tenants, so this order matters only for work of the same tenant.
local function choose_over_all(ageing_ms, share)
    local best
    for domain in pairs(waiting_roles) do
        if choices[domain] == nil then
            choices[domain] = choose(domain, ageing_ms, share) or false
        end
        local first, other = best and best.next, choices[domain] and choices[domain].next
        if other and (not first or other.band < first.band or (other.band == first.band and (other.score < first.score
            or (other.score == first.score and other.role < first.role)))) then
            best = choices[domain]
        end
    end
    if not best then
        return nil
    end
    local aged, by_head = {}, { [best.next] = best }
    for _, choice in pairs(choices) do
        local head = choice and choice.next
        if head and head.tenant == best.next.tenant and head.band > best.next.band and waiting_ms(head) >= ageing_ms then
            aged[#aged + 1] = head
            by_head[head] = choice
        end
    end
    table.sort(aged, function(one, other)
        return one.band < other.band or (one.band == other.band and one.role < other.role)
    end)
    local over_all = turn("tenant:" .. best.next.tenant, best.next, aged, share)
    return by_head[over_all.next], over_all
end

local starts_left, startable_roles = 0, {} -- how many grants may be started immediately for the caller, and of which roles

local function new_grant()
    return generation .. "-" .. redis.call("INCR", key("grants"))
end

local function take(id, role, tenant, first)
    local waiter, pool, started = dequeue(id, first), pool_of(role), 0
    local grant = new_grant()
    if starts_left > 0 and startable_roles[role] then
        starts_left, started = starts_left - 1, 1
    end
    hold(id, waiter, pool, grant, started * now)
    count_start(tenant, role, grant)
    reindex()
    return { id, tenant, role, grant, started }
end

-- Work that a person allowed to run despite pauses is granted before all other work, as soon as all other limits have room. Tenants take
-- turns. A call checks only so many activities and tenants; if there are more, those that could not start are checked last the next time.
local EXPRESS_PER_CALL, EXPRESS_TENANTS = 200, 20

local function may_ignore_pauses(lane, parts)
    local pool = pool_of(parts.role)
    if not pool or seats_left(pool) <= 0 or full_rate_limit(parts.tenant, parts.role, parts.band) then
        return false
    end
    for _, scope in ipairs(scopes_of(parts)) do
        local cap = cap_without_pauses(scope, parts.tenant, parts.role)
        if cap and used_of(scope) >= cap then
            return false
        end
    end
    return parts.files == "" or not blocking_files(lane, parts)
end

local function move_to_end(name, members)
    for _, member in ipairs(members) do
        local last = redis.call("ZRANGE", key(name), -1, -1, "WITHSCORES")[2]
        if last then
            redis.call("ZADD", key(name), "XX", last + 1, member)
        end
    end
end

local function grant_express(limit)
    local granted, tenants = {}, limit > 0 and redis.call("ZRANGE", key("express"), 0, EXPRESS_TENANTS - 1) or {}
    local share = math.floor(EXPRESS_PER_CALL / #tenants)
    local waiting, served, passed_over = {}, {}, {}
    for _, tenant in ipairs(tenants) do
        waiting[tenant], passed_over[tenant] = redis.call("ZRANGE", key("express:" .. tenant), 0, share - 1), {}
    end
    for place = 1, #tenants > 0 and share or 0 do
        for _, tenant in ipairs(tenants) do
            local id = #granted < limit and waiting[tenant][place]
            local lane = id and split(field("entries", id), "|", 2)[2]
            local parts = lane and lane_parts(lane)
            if parts and may_ignore_pauses(lane, parts) then
                granted[#granted + 1] = take(id, parts.role, tenant)
                served[#served + 1] = tenant
            elseif parts then
                table.insert(passed_over[tenant], id)
            end
        end
    end
    for _, tenant in ipairs(tenants) do
        if redis.call("ZCARD", key("express:" .. tenant)) > share then
            move_to_end("express:" .. tenant, passed_over[tenant])
        end
    end
    if #tenants == EXPRESS_TENANTS then
        move_to_end("express", tenants)
    end
    move_to_end("express", served)
    return granted
end

local function grant_next(ageing_ms, share)
    local choice, over_all = choose_over_all(ageing_ms, share)
    if not choice then
        return nil
    end
    local head = choice.next
    read_ahead(head.tenant, head.role)
    read_fields("since_aged", { choice.counter .. "|" .. head.band, over_all.counter .. "|" .. head.band })
    record_turn(choice)
    record_turn(over_all)
    local domain = domain_of(head.role)
    raise_floor("role", head.role, head.band, head.time)
    raise_floor("domain", domain, head.band, head.time)
    if tokens_of(head.tenant, head.role) then
        -- The tenant earns no credit for the time during which its rate limit holds it back.
        raise_virtual_time(domain, head.tenant, head.band, floor_of("role", head.role, head.band))
    end
    local first = redis.call("ZRANGE", key("queue:" .. head.lane), 0, 1, "WITHSCORES")
    local granted = take(first[1], head.role, head.tenant, { tonumber(first[2]), first[4] })
    -- All other changes concern this tenant, so only the choices in which it was the first tenant must be made again.
    choices[domain] = nil
    for name, other in pairs(candidates) do
        if other and other.tenant == head.tenant then
            candidates[name] = nil
            choices[domain_of(other.role)] = nil
        end
    end
    return granted
end

-- Time ----------------------------------------------------------------------------------------------------------------

-- Marks the places whose rate limits should have room by now, and deletes their expired holds.
local function mark_due_places()
    for _, member in ipairs(redis.call("ZRANGEBYSCORE", key("due"), "-inf", now)) do
        redis.call("ZREM", key("due"), member)
        local p = split(member, "|", 3)
        local tenant, role, band = p[1], p[2], tonumber(p[3])
        changed(tenant, role, band)
        local name = hold_field(tenant, role, band)
        local hold = field("holds", name)
        if hold and tonumber(split(hold, "|", 2)[1]) <= now then
            drop_field("holds", name)
        end
    end
end

-- Returns after how many ms the caller should call again, because a rate limit will then have room for waiting work. Returns nil if no rate
-- limit holds back work, or if an earlier caller will call in time.
local function ms_until_next_call()
    local first = redis.call("ZRANGE", key("due"), 0, 0, "WITHSCORES")
    local due = first[2] and tonumber(first[2])
    for place, waiting in pairs(all_fields("waiting")) do
        local _, at = nil, nil
        if waiting then
            _, at = full_shared_rate_limit((place_parts(place)))
        end
        if at and (not due or at < due) then
            due = at
        end
    end
    if not due then
        return nil
    end
    local alarm = tonumber(redis.call("GET", key("alarm")) or "0")
    if alarm > now and alarm <= due then
        return nil
    end
    redis.call("SET", key("alarm"), string.format("%d", due))
    return math.max(0, due - now)
end
