-- Returns the state of one activity in admission.
-- KEYS[1]  the pointer
-- ARGV[1]  activity id
-- Returns  JSON: {"state": "closed"}, {"state": "unknown"},
--          {"state": "held", "started": bool, "grant": g},
--          {"state": "waiting", "at": "ready", "worker:<role>" or the full scope, "cap": n, "used": n, "position": n,
--           "seats": n, "taken": n, "duration": seconds, "due": ms until a rate limit has room,
--           "holder": the activity or the provider that it waits for, "code": reason, "per_second": of a rate}
--          `position`: 1 plus the number of activities before it that wait for the same scope. For a limit of its tenant, these are the
--          tenant's; for other limits also those of other tenants, by band and virtual time. Ageing is ignored.

local COUNTED_EXACTLY = 200 -- lanes of a place, or tenants, that are counted exactly; each further one counts as one activity

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
local tenant, band = parts.tenant, parts.band
local score = redis.call("ZSCORE", key("queue:" .. lane), ARGV[1])

local function backlog(of_tenant, role, of_band)
    return number("backlog", of_tenant .. "|" .. role .. "|" .. of_band, "0")
end

-- Counts the waiters of a lane that come before the activity. In its own lane, this includes waiters with the same score and a smaller id.
local function before_in_lane(other)
    if other == lane then
        return redis.call("ZRANK", key("queue:" .. lane), ARGV[1])
    end
    return redis.call("ZCOUNT", key("queue:" .. other), "-inf", "(" .. score)
end

-- Counts waiters of the tenant in this band and role that come before the activity by score.
local function before_in_place(role)
    local index, before = lanes_key(tenant, role, band), 0
    local lanes = redis.call("ZRANGE", index, 0, COUNTED_EXACTLY - 1)
    for _, other in ipairs(lanes) do
        before = before + before_in_lane(other)
    end
    if #lanes == COUNTED_EXACTLY then
        local rest = redis.call("ZCOUNT", index, "-inf", "(" .. score)
        before = before + math.max(0, rest - COUNTED_EXACTLY)
    end
    return before
end

-- Counts waiters of the tenant in these roles that come before the activity: those in its band, and those in more urgent bands.
local function own_before(roles)
    local same, lower = 0, 0
    for _, role in ipairs(roles) do
        same = same + before_in_place(role)
        for of_band = 1, band - 1 do
            lower = lower + backlog(tenant, role, of_band)
        end
    end
    return same, lower
end

local function seconds_charged(of_tenant, role)
    return math.max(expected_seconds(of_tenant, role), 0.001) / number("weights", of_tenant, "1")
end

-- Counts waiters of other tenants that come before the activity: all in more urgent bands, and in its own band those whose
-- turn by virtual time comes before its own.
local function others_before(roles, own_in_band)
    local before = 0
    local function count_index(index, role, turn_time)
        local ready = redis.call("ZRANGEBYSCORE", index, "-inf", turn_time, "WITHSCORES", "LIMIT", 0, COUNTED_EXACTLY)
        for i = 1, #ready, 2 do
            local other = tenant_of(ready[i])
            if other ~= tenant then
                local ahead = (turn_time - tonumber(ready[i + 1])) / seconds_charged(other, role)
                local turns = math.ceil(ahead - 1e-6)
                -- At equal virtual time, the tenant with the lower score comes first.
                if math.abs(turns - ahead) < 1e-6 and tonumber(string.sub(ready[i], 1, 15)) < tonumber(score) then
                    turns = turns + 1
                end
                before = before + math.min(turns, backlog(other, role, band))
            end
        end
        if #ready == COUNTED_EXACTLY * 2 then
            local rest = redis.call("ZCOUNT", index, "-inf", turn_time) - COUNTED_EXACTLY
            local own_rank = redis.call("ZRANK", index, places_of(tenant)[role .. "|" .. band] or "")
            before = before + rest - (own_rank and own_rank >= COUNTED_EXACTLY and 1 or 0)
        end
    end
    for _, role in ipairs(roles) do
        for of_band = 1, band - 1 do
            before = before + number("waiting", role .. "|" .. of_band, "0") - backlog(tenant, role, of_band)
        end
        local turn_time = virtual_time(domain_of(role), tenant, band) + own_in_band * seconds_charged(tenant, parts.role)
        count_index(ready_key(role, band, SHARED), role, turn_time)
        count_index(ready_key(role, band, OWN), role, turn_time)
    end
    return before
end

local function roles_where(matches)
    local roles, seen = {}, {}
    for _, place in ipairs(redis.call("HKEYS", key("waiting"))) do
        local role = place_parts(place)
        if not seen[role] and matches(role) then
            seen[role] = true
            roles[#roles + 1] = role
        end
    end
    return roles
end

-- Counts the activities that wait for the same scope and come before this one. Without a scope it waits only for its turn.
local function before(scope)
    local kind = scope and string.match(scope, "^%a+") or "seats"
    local pool, domain = pool_of(parts.role), domain_of(parts.role)
    if kind == "group" or kind == "files" then
        local count_before = before_in_lane(lane)
        for of_band = 1, band - 1 do
            count_before = count_before + redis.call("ZCARD", key("queue:" .. lane_name(tenant, parts.role, of_band, parts.group)))
        end
        return count_before
    elseif kind == "pipeline" or kind == "schedule" or kind == "pair" or kind == "rate" or kind == "hold"
        or scope == "starts:" .. tenant .. ":" .. parts.role then
        local same, lower = own_before({ parts.role })
        return same + lower
    elseif kind == "tenant" then
        local same, lower = own_before(roles_where(function(role)
            return backlog(tenant, role, 1) + backlog(tenant, role, 2) + backlog(tenant, role, 3) + backlog(tenant, role, 4) > 0
        end))
        return same + lower
    end
    local of_role = kind == "role" or kind == "starts" or not pool
    local roles = of_role and { parts.role } or roles_where(function(role)
        return kind == "global" and domain_of(role) == domain or pool_of(role) == pool
    end)
    local same, lower = own_before(roles)
    return same + lower + others_before(roles, same)
end

local pool = pool_of(parts.role)
-- Pauses do not apply to work that a person allowed to run despite them; all other limits do.
local cap = is_express(tenant, ARGV[1]) and cap_without_pauses or cap_of
local function full_of(scopes)
    for _, each in ipairs(scopes) do
        local most = cap(each, parts.tenant, parts.role)
        if most and used_of(each) >= most then
            return each
        end
    end
    return nil
end
local scope, due
local full = cap == cap_of and full_of(origin_scopes(parts)) or full_of(lane_scopes(parts))
    or parts.files ~= "" and blocking_files(lane, parts) or full_of(scopes_of(parts))
if not full then
    full, due = full_rate_limit(parts.tenant, parts.role, parts.band)
end
scope = pool and full
local answer = {
    state = "waiting", at = pool and (scope or "ready") or "worker:" .. parts.role,
    position = before(scope) + 1,
    duration = number("durations", parts.tenant .. "|" .. parts.role, "1"),
    seats = pool and seats_of(pool) or 0,
    taken = pool and used_of("seat:" .. pool) or 0,
}
if scope then
    local kind = string.match(scope, "^%a+")
    answer.cap = not due and cap(scope, parts.tenant, parts.role) or nil
    answer.used = used_of(scope)
    answer.due = due and math.max(0, due - now)
    if kind == "files" then
        local digest = split(scope, ":", 3)[3]
        answer.holder = field("holders:" .. parts.tenant, digest) or nil
        if not answer.holder then
            -- No running work holds these files: earlier work that also waits has a claim to them.
            for other in pairs(claims_of(parts.tenant)) do
                if lane_parts(other).files == digest then
                    answer.holder = redis.call("ZRANGE", key("queue:" .. other), 0, 0)[1]
                end
            end
        end
    elseif kind == "rate" then
        local _, _, per_second = tokens_of(parts.tenant, parts.role)
        answer.per_second = per_second
    elseif kind == "starts" then
        local _, limit = window_of(parts.tenant, parts.role)
        answer.cap, answer.used = limit, starts_in(scope)
    elseif kind == "hold" then
        local hold_parts = split(field("holds", hold_field(parts.tenant, parts.role, parts.band)), "|", 3)
        answer.code, answer.holder = hold_parts[2], hold_parts[3]
    end
end
return cjson.encode(answer)
