-- Grants a call to a provider if it may begin: takes a slot and reserves the highest possible cost of the call.
-- KEYS[1]  state (hash)
-- KEYS[2]  running calls (sorted set: id -> end of lease)
-- KEYS[3]  their reservations (hash)
-- KEYS[4]  and the three that follow: usage by dimension (hash: part of the window -> amount)
-- ARGV     1 call id  2 urgent (1 or 0)  3 milliseconds of the lease
--          4..7 cost, 8..11 limit (0: the reported one, if any; see report.lua), 12..15 milliseconds of its window; each by dimension
--          16 initial slots  17 maximum of slots  18 faults that open the breaker  19 milliseconds of its cooldown
--          20 share of a limit below which only urgent calls begin  21 parts of a window
-- Returns  {1 or 0, reason, milliseconds to wait}
-- Safe to call twice: a running call is granted again, and reserves nothing more.
local state, calls, reserved = KEYS[1], KEYS[2], KEYS[3]
local id, urgent, lease, parts = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3]), tonumber(ARGV[21])
local NAMES = {'requests', 'input_tokens', 'output_tokens', 'day_tokens'}
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local function number(field, otherwise)
    return tonumber(redis.call('HGET', state, field)) or otherwise
end
local function no(reason, wait)
    return {0, reason, math.max(1, math.ceil(wait))}
end

-- The holders of expired leases have died: their calls must have ended, so their slots are free. Their reservations stay spent.
for _, other in ipairs(redis.call('ZRANGEBYSCORE', calls, '-inf', now)) do
    redis.call('ZREM', calls, other)
    redis.call('HDEL', reserved, other)
end
if redis.call('ZSCORE', calls, id) then
    return {1, 'granted', 0}
end

local open_until = number('open_until', 0)
if open_until > now then
    return no('breaker', open_until - now)
end
local probing = number('faults', 0) >= tonumber(ARGV[18])
if probing then
    local probe_until = number('probe_until', 0)
    if probe_until > now then
        return no('breaker', math.min(probe_until - now, tonumber(ARGV[19])))
    end
end

local retry_at = number('retry_at', 0)
if retry_at > now then
    return no('retry_after', retry_at - now)
end

-- Returns how long until the usage of this window leaves room. The oldest parts expire first.
local function until_room(used, total, part, most)
    local names = {}
    for name in pairs(used) do
        names[#names + 1] = name
    end
    table.sort(names)
    for _, name in ipairs(names) do
        total = total - used[name]
        if total <= most then
            return (name + parts + 1) * part - now
        end
    end
    return 0
end

-- Parts that have left the window are kept for a while. The provider may have counted their calls a little later than this script,
-- and may still count them. report.lua must not mistake them for usage by others.
local LATE = 5

local wait, reason, costs, bases, counted = 0, nil, {}, {}, {0, 0, 0, 0}
for index, name in ipairs(NAMES) do
    local cost, limit, window = tonumber(ARGV[3 + index]), tonumber(ARGV[7 + index]), tonumber(ARGV[11 + index])
    local reported = limit == 0 and number(name .. '_limit_until', 0) > now
    if reported then
        limit, window = number(name .. '_limit', 0), number(name .. '_window', window)
    end
    if limit > 0 then
        local part = window / parts
        local oldest, used, total, late = math.floor(now / part) - parts, {}, 0, 0
        local found = redis.call('HGETALL', KEYS[3 + index])
        for each = 1, #found, 2 do
            local slot, amount = tonumber(found[each]), tonumber(found[each + 1])
            if slot < oldest - LATE then
                redis.call('HDEL', KEYS[3 + index], found[each])
            elseif slot < oldest then
                late = late + amount
            else
                used[slot], total = amount, total + amount
            end
        end
        -- A cost above the limit waits for an empty window and overdraws it: slow, but never stuck.
        local most = limit - math.min(cost, limit)
        if not urgent then
            local share = tonumber(ARGV[20])
            most = math.min(most, limit * (1 - share))
            if reported then
                -- Others may share a limit that was not configured: its last tenth, at least one, is reserved for urgent calls.
                local ours = limit - math.min(math.ceil(limit * share), limit - 1)
                most = ours - math.min(cost, ours)
            end
        end
        if total > most then
            local this = until_room(used, total, part, most)
            if this > wait then
                wait, reason = this, name
            end
        end
        costs[index], counted[index] = {math.floor(now / part), cost, window}, 1
        bases[index] = late + total - number(name .. '_ever', 0)
    end
end
if reason then
    return no(reason, wait)
end

local slots = math.floor(math.min(tonumber(ARGV[17]), number('slots', tonumber(ARGV[16]))))
if redis.call('ZCARD', calls) >= slots then
    local first = redis.call('ZRANGE', calls, 0, 0, 'WITHSCORES')
    return no('slots', math.min(250, tonumber(first[2]) - now))
end

for index, taken in pairs(costs) do
    redis.call('HINCRBYFLOAT', KEYS[3 + index], string.format('%.0f', taken[1]), taken[2])
    redis.call('HINCRBYFLOAT', state, NAMES[index] .. '_ever', taken[2])
    redis.call('PEXPIRE', KEYS[3 + index], math.ceil(2 * taken[3]))
end
if probing then
    redis.call('HSET', state, 'probe', id, 'probe_until', string.format('%.0f', now + lease))
end
redis.call('ZADD', calls, string.format('%.0f', now + lease), id)
-- `bases` record the known usage of the window in which this call begins. With what is taken later, report.lua compares it to the headers.
redis.call('HSET', reserved, id, string.format(
    '%.0f %s %s %s %s %d %.0f %.0f %.0f %.0f %d %d %d %d', now, ARGV[4], ARGV[5], ARGV[6], ARGV[7], number('halvings', 0),
    bases[1] or 0, bases[2] or 0, bases[3] or 0, bases[4] or 0, unpack(counted)
))
for index = 1, 3 do
    redis.call('PEXPIRE', KEYS[index], 2 * 86400000 + lease)
end
return {1, 'granted', 0}
