-- What every admission script shares. Prepended to each of them; see keys.py for the layout in Redis.
--
-- KEYS[1]  the pointer: a string naming the generation that is in force. Missing (a wiped Redis): admission is closed.
--
-- Words: a *lane* holds waiters that need exactly the same slots (tenant, role, band, group), so they are eligible together or
-- not at all. A lane is ready (in the index of its pool) or parked at the one scope that had no room for it. A *pool* is a set
-- of roles whose workers are the same ones; its *seats* are what these workers can run at once.

local POINTER = KEYS[1]
local CLOSED = "closed"
local BANDS = 4
local generation, root
local time = redis.call("TIME")
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local function use(name)
    generation = name
    root = POINTER .. ":" .. name .. ":"
end

local function open()
    local current = redis.call("GET", POINTER)
    if not current then
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

-- Lanes -----------------------------------------------------------------------------------------------------------

local function lane_name(tenant, role, band, group)
    return tenant .. "|" .. role .. "|" .. band .. "|" .. group
end

local function lane_parts(lane)
    local p = split(lane, "|", 4)
    return { tenant = p[1], role = p[2], band = p[3], group = p[4] }
end

local function pool_of(role)
    return redis.call("HGET", key("pools"), role)
end

-- The scopes in which a waiter of this lane needs a slot, most particular first.
local function scopes_of(lane)
    local scopes = {}
    if lane.group ~= "" then
        scopes[#scopes + 1] = "group:" .. lane.tenant .. ":" .. lane.role .. ":" .. lane.group
    end
    scopes[#scopes + 1] = "pair:" .. lane.tenant .. ":" .. lane.role
    scopes[#scopes + 1] = "tenant:" .. lane.tenant
    scopes[#scopes + 1] = "role:" .. lane.role
    scopes[#scopes + 1] = "global"
    return scopes
end

-- A scope's cap, or nil for none. What has no cap of its own falls back to the default of its kind.
local function cap_of(scope, lane)
    local cap = redis.call("HGET", key("caps"), scope)
    if not cap and string.sub(scope, 1, 6) == "group:" then
        cap = redis.call("HGET", key("caps"), "groups:" .. lane.tenant .. ":" .. lane.role)
            or redis.call("HGET", key("caps"), "groups:*:" .. lane.role) or "1"
    elseif not cap and string.sub(scope, 1, 5) == "pair:" then
        cap = redis.call("HGET", key("caps"), "pair:*:" .. lane.role)
    end
    return cap and tonumber(cap) or nil
end

local function used_of(scope)
    return tonumber(redis.call("HGET", key("used"), scope) or "0")
end

-- How many more fit into the scope; nil when it has no cap.
local function room_of(scope, lane)
    local cap = cap_of(scope, lane)
    return cap and cap - used_of(scope) or nil
end

local function has_room(scope, lane)
    local room = room_of(scope, lane)
    return room == nil or room > 0
end

local function seats_left(pool)
    local cap = redis.call("HGET", key("caps"), "seat:" .. pool)
    return cap and tonumber(cap) - used_of("seat:" .. pool) or 0
end

local function add_used(scope, amount)
    if redis.call("HINCRBY", key("used"), scope, amount) <= 0 then
        redis.call("HDEL", key("used"), scope)
    end
end

-- Fairness: a tenant's virtual time in a pool is what it has used there, in slot-seconds over its weight ------------

local function virtual_time(pool, tenant)
    return tonumber(redis.call("HGET", key("vtime:" .. pool), tenant) or "0")
end

local function charge(pool, tenant, seconds)
    local weight = tonumber(redis.call("HGET", key("weights"), tenant) or "1")
    local value = virtual_time(pool, tenant) + seconds / weight
    redis.call("HSET", key("vtime:" .. pool), tenant, string.format("%.6f", value))
    for band = 1, BANDS do
        redis.call("ZADD", key("ready:" .. pool .. ":" .. band), "XX", value, tenant)
    end
end

local function head_score(lane)
    return tonumber(redis.call("ZRANGE", key("queue:" .. lane), 0, 0, "WITHSCORES")[2])
end

local function make_ready(lane)
    local parts = lane_parts(lane)
    local pool = pool_of(parts.role)
    if not pool then
        redis.call("HSET", key("lanes"), lane, "worker:" .. parts.role)
        return
    end
    redis.call("HSET", key("lanes"), lane, "ready")
    redis.call("ZADD", key("lanes:" .. pool .. ":" .. parts.band .. ":" .. parts.tenant), head_score(lane), lane)
    local ready = key("ready:" .. pool .. ":" .. parts.band)
    if not redis.call("ZSCORE", ready, parts.tenant) then
        -- Who was away gets no credit for it: joining means standing level with the tenant served last.
        local floor = tonumber(redis.call("HGET", key("floors"), pool) or "0")
        local value = math.max(virtual_time(pool, parts.tenant), floor)
        redis.call("HSET", key("vtime:" .. pool), parts.tenant, string.format("%.6f", value))
        redis.call("ZADD", ready, value, parts.tenant)
    end
    redis.call("SADD", key("active"), pool)
end

local function leave_ready(lane, parts, pool)
    local index = key("lanes:" .. pool .. ":" .. parts.band .. ":" .. parts.tenant)
    redis.call("ZREM", index, lane)
    if redis.call("EXISTS", index) == 0 then
        redis.call("ZREM", key("ready:" .. pool .. ":" .. parts.band), parts.tenant)
    end
end

-- Lets lanes that were parked at a scope compete again, as many as have room there.
local function unpark(scope, limit)
    local parked = key("parked:" .. scope)
    local first = redis.call("ZRANGE", parked, 0, 0)[1]
    if not first then
        return
    end
    local room = room_of(scope, lane_parts(first))
    for _ = 1, math.min(room or 1e9, limit or 1e9) do
        local lane = redis.call("ZPOPMIN", parked)[1]
        if not lane then
            return
        end
        make_ready(lane)
    end
end

local function park(lane, parts, pool, scope)
    leave_ready(lane, parts, pool)
    redis.call("HSET", key("lanes"), lane, scope)
    redis.call("ZADD", key("parked:" .. scope), head_score(lane), lane)
    -- It may have been let in for room elsewhere that it cannot use: the next one parked there gets its chance.
    for _, other in ipairs(scopes_of(parts)) do
        if other ~= scope then
            unpark(other, 1)
        end
    end
end

local function blocked_at(parts)
    for _, scope in ipairs(scopes_of(parts)) do
        if not has_room(scope, parts) then
            return scope
        end
    end
    return nil
end

-- Waiting -----------------------------------------------------------------------------------------------------------

-- Adds a waiter. Nothing happens when it waits or holds a slot already.
local function enqueue(id, tenant, role, band, score, group)
    if redis.call("HEXISTS", key("slots"), id) == 1 or redis.call("HEXISTS", key("entries"), id) == 1 then
        return
    end
    local lane = lane_name(tenant, role, band, group)
    redis.call("HSET", key("entries"), id, lane)
    redis.call("HINCRBY", key("waiting"), role .. "|" .. band, 1)
    redis.call("ZADD", key("queue:" .. lane), score, id)
    local at = redis.call("HGET", key("lanes"), lane)
    if not at then
        make_ready(lane)
    elseif at == "ready" then
        local pool = pool_of(role)
        redis.call("ZADD", key("lanes:" .. pool .. ":" .. band .. ":" .. tenant), head_score(lane), lane)
    end
end

-- Takes a waiter out of its lane, wherever the lane stands.
local function dequeue(id, lane)
    local parts = lane_parts(lane)
    redis.call("HDEL", key("entries"), id)
    redis.call("HINCRBY", key("waiting"), parts.role .. "|" .. parts.band, -1)
    redis.call("ZREM", key("queue:" .. lane), id)
    local at = redis.call("HGET", key("lanes"), lane)
    if redis.call("EXISTS", key("queue:" .. lane)) == 1 then
        if at == "ready" then
            local pool = pool_of(parts.role)
            redis.call("ZADD", key("lanes:" .. pool .. ":" .. parts.band .. ":" .. parts.tenant), head_score(lane), lane)
        end
        return
    end
    redis.call("HDEL", key("lanes"), lane)
    if at == "ready" then
        leave_ready(lane, parts, pool_of(parts.role))
    elseif at then
        redis.call("ZREM", key("parked:" .. at), lane)
    end
end

-- Slots ---------------------------------------------------------------------------------------------------------------
-- A slot is "grant|started ms or 0|granted ms|charged seconds|pool or empty|lane"; the pool is empty once no worker waits.

local function read_slot(id)
    local text = redis.call("HGET", key("slots"), id)
    if not text then
        return nil
    end
    local p = split(text, "|", 6)
    return {
        grant = p[1], started = tonumber(p[2]), granted = tonumber(p[3]),
        charged = tonumber(p[4]), pool = p[5], lane = p[6],
    }
end

local function write_slot(id, slot)
    redis.call("HSET", key("slots"), id, table.concat({
        slot.grant, string.format("%d", slot.started), string.format("%d", slot.granted),
        string.format("%.3f", slot.charged), slot.pool, slot.lane,
    }, "|"))
end

local function hold(id, lane, parts, pool, grant, started)
    for _, scope in ipairs(scopes_of(parts)) do
        add_used(scope, 1)
    end
    if pool ~= "" then
        add_used("seat:" .. pool, 1)
    end
    local expected = tonumber(redis.call("HGET", key("durations"), parts.tenant .. "|" .. parts.role) or "0.1")
    if pool ~= "" then
        charge(pool, parts.tenant, expected)
    end
    write_slot(id, { grant = grant, started = started, granted = now, charged = expected, pool = pool, lane = lane })
    redis.call("HINCRBY", key("held"), parts.role, 1)
    if started == 0 then
        redis.call("ZADD", key("unstarted"), now, id)
    end
end

-- Gives the seat back but keeps every other slot: the agent accepted the work, so no worker waits for it.
local function leave_seat(id, slot)
    if slot.pool ~= "" then
        add_used("seat:" .. slot.pool, -1)
        redis.call("SADD", key("active"), slot.pool)
        slot.pool = ""
        write_slot(id, slot)
    end
end

-- Gives every slot back. `grant` of another holder changes nothing: a late worker cannot free what is no longer its own.
local function release(id, grant)
    local slot = read_slot(id)
    if not slot or (grant ~= "" and slot.grant ~= grant) then
        return false
    end
    local parts = lane_parts(slot.lane)
    local pool = slot.pool
    redis.call("HDEL", key("slots"), id)
    redis.call("ZREM", key("unstarted"), id)
    if redis.call("HINCRBY", key("held"), parts.role, -1) <= 0 then
        redis.call("HDEL", key("held"), parts.role)
    end
    if pool ~= "" then
        add_used("seat:" .. pool, -1)
        redis.call("SADD", key("active"), pool)
        local actual = slot.started > 0 and (now - slot.started) / 1000 or 0
        charge(pool, parts.tenant, actual - slot.charged)
        if slot.started > 0 then
            local name = parts.tenant .. "|" .. parts.role
            local before = tonumber(redis.call("HGET", key("durations"), name) or actual)
            redis.call("HSET", key("durations"), name, string.format("%.4f", before * 0.8 + actual * 0.2))
        end
    end
    for _, scope in ipairs(scopes_of(parts)) do
        add_used(scope, -1)
        unpark(scope)
    end
    return true
end

-- Granting ------------------------------------------------------------------------------------------------------------

-- The first eligible lane of a band, tenants in the order of their virtual time. Parks what has no room on the way.
local function pick_in_band(pool, band)
    local ready = key("ready:" .. pool .. ":" .. band)
    while true do
        local tenant = redis.call("ZRANGE", ready, 0, 0)[1]
        if not tenant then
            return nil
        end
        local index = key("lanes:" .. pool .. ":" .. band .. ":" .. tenant)
        local lane = redis.call("ZRANGE", index, 0, 0)[1]
        if not lane then
            redis.call("ZREM", ready, tenant)
        else
            local parts = lane_parts(lane)
            local scope = blocked_at(parts)
            if not scope then
                return lane, parts
            end
            park(lane, parts, pool, scope)
        end
    end
end

local function waited(lane, priority_ms)
    return now - (head_score(lane) - priority_ms)
end

-- Lower bands that have waited beyond the ageing bound get one grant of `share`, so nothing starves; within a band the
-- tenants' shares decide as ever. Ageing never moves work of one tenant ahead of another's in the same band.
local function pick(pool, ageing_ms, share)
    local top, lane, parts
    for band = 1, BANDS do
        lane, parts = pick_in_band(pool, band)
        if lane then
            top = band
            break
        end
    end
    if not lane or top == BANDS then
        return lane, parts
    end
    local since = tonumber(redis.call("HGET", key("since_aged"), pool) or "0")
    if since + 1 >= share then
        local oldest = ageing_ms
        for band = top + 1, BANDS do
            local candidate, its = pick_in_band(pool, band)
            -- 30 s per level of priority are in the score; the band's own level is what they come to at most.
            if candidate and waited(candidate, ({ 1, 5, 10, 20 })[band] * 30000) >= oldest then
                oldest = waited(candidate, ({ 1, 5, 10, 20 })[band] * 30000)
                lane, parts = candidate, its
                since = -1
            end
        end
    end
    redis.call("HSET", key("since_aged"), pool, math.min(since + 1, share))
    return lane, parts
end

local function grant_next(pool, ageing_ms, share)
    if seats_left(pool) <= 0 then
        return nil
    end
    local lane, parts = pick(pool, ageing_ms, share)
    if not lane then
        return nil
    end
    redis.call("HSET", key("floors"), pool, string.format("%.6f", virtual_time(pool, parts.tenant)))
    local id = redis.call("ZRANGE", key("queue:" .. lane), 0, 0)[1]
    dequeue(id, lane)
    local grant = generation .. "-" .. redis.call("INCR", key("grants"))
    hold(id, lane, parts, pool, grant, 0)
    return { id = id, tenant = parts.tenant, role = parts.role, grant = grant }
end
