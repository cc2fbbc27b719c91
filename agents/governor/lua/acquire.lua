-- Grants a call to a provider if it may begin: takes a slot and reserves the highest possible cost of the call.
-- KEYS[1]  state (hash)
-- KEYS[2]  running calls (sorted set: id -> end of lease)
-- KEYS[3]  reservations of the running calls (hash)
-- KEYS[4]  to KEYS[7]: usage by dimension (hash: part of the window -> amount)
-- ARGV     1 call id  2 urgent (1 or 0)  3 milliseconds of the lease
--          4..7 cost, 8..11 limit (0: the one that the provider reported, if any), 12..15 milliseconds of its window; each by dimension
--          16 initial slots  17 maximum of slots  18 faults that open the breaker  19 milliseconds of its cooldown
--          20 share of a limit below which only urgent calls begin  21 parts of a window
-- Returns  {1 or 0, reason, milliseconds to wait}
-- Twice    A running call is granted again, without a second reservation.
local state, calls, reserved = KEYS[1], KEYS[2], KEYS[3]
local id, urgent, lease, parts = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3]), tonumber(ARGV[21])
local NAMES = {'requests', 'input_tokens', 'output_tokens', 'day_tokens'}
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local function number(field, otherwise)
    return tonumber(redis.call('HGET', state, field)) or otherwise
end
local function refuse(reason, wait)
    return {0, reason, math.max(1, math.ceil(wait))}
end

-- If a lease has expired, its process has died and its call has ended. The slot is free; the reservation stays spent.
for _, other in ipairs(redis.call('ZRANGEBYSCORE', calls, '-inf', now)) do
    redis.call('ZREM', calls, other)
    redis.call('HDEL', reserved, other)
end
if redis.call('ZSCORE', calls, id) then
    return {1, 'granted', 0}
end

local open_until = number('open_until', 0)
if open_until > now then
    return refuse('breaker', open_until - now)
end
local probing = number('faults', 0) >= tonumber(ARGV[18])
if probing then
    local probe_until = number('probe_until', 0)
    if probe_until > now then
        return refuse('breaker', math.min(probe_until - now, tonumber(ARGV[19])))
    end
end

local retry_at = number('retry_at', 0)
if retry_at > now then
    return refuse('retry_after', retry_at - now)
end

-- Returns the ms until enough usage has left this window. The oldest parts leave it first.
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

-- So many parts are kept after they have left the window. The provider may have counted their calls a little later than this script, and
-- may still count them. Without these parts, report.lua would take that for usage by other programs.
local LATE_PARTS = 5

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
        local reply = redis.call('HGETALL', KEYS[3 + index])
        for each = 1, #reply, 2 do
            local slot, amount = tonumber(reply[each]), tonumber(reply[each + 1])
            if slot < oldest - LATE_PARTS then
                redis.call('HDEL', KEYS[3 + index], reply[each])
            elseif slot < oldest then
                late = late + amount
            else
                used[slot], total = amount, total + amount
            end
        end
        -- A call that costs more than the limit waits for an empty window and then exceeds it. Otherwise it could never start.
        local most = limit - math.min(cost, limit)
        if not urgent then
            local share = tonumber(ARGV[20])
            most = math.min(most, limit * (1 - share))
            if reported then
                -- Other programs may use a reported limit as well. So its last share, rounded up, must stay unused even after this call.
                local usable = limit - math.min(math.ceil(limit * share), limit - 1)
                most = usable - math.min(cost, usable)
            end
        end
        if total > most then
            local wait_here = until_room(used, total, part, most)
            if wait_here > wait then
                wait, reason = wait_here, name
            end
        end
        costs[index], counted[index] = {math.floor(now / part), cost, window}, 1
        bases[index] = late + total - number(name .. '_ever', 0)
    end
end
if reason then
    return refuse(reason, wait)
end

local slots = math.floor(math.min(tonumber(ARGV[17]), number('slots', tonumber(ARGV[16]))))
if redis.call('ZCARD', calls) >= slots then
    local first = redis.call('ZRANGE', calls, 0, 0, 'WITHSCORES')
    return refuse('slots', math.min(250, tonumber(first[2]) - now))
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
-- `bases` holds the known usage in each window when this call begins. report.lua adds later usage and compares the sum with the headers.
redis.call('HSET', reserved, id, string.format(
    '%.0f %s %s %s %s %d %.0f %.0f %.0f %.0f %d %d %d %d', now, ARGV[4], ARGV[5], ARGV[6], ARGV[7], number('halvings', 0),
    bases[1] or 0, bases[2] or 0, bases[3] or 0, bases[4] or 0, unpack(counted)
))
for index = 1, 3 do
    redis.call('PEXPIRE', KEYS[index], 2 * 86400000 + lease)
end
return {1, 'granted', 0}
