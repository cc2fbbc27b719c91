-- Records the end of a call: releases its slot, replaces its reservation with the actual cost, and learns limits from the answer.
-- KEYS[1]  to KEYS[7]: as in acquire.lua
-- ARGV     1 call id  2 outcome: ok, limited, fault or other  3 milliseconds of Retry-After, -1 if there was none
--          4..7 actual cost by dimension, -1 if unknown
--          8..11 limits  12..15 milliseconds of their windows
--          16..19 remaining units that the provider reports, -1 if it does not  20..23 milliseconds until the reset, likewise
--          24 initial slots  25 maximum of slots  26 faults that open the breaker  27 milliseconds of its cooldown
--          28 milliseconds to wait after a 429 without Retry-After  29 parts of a window
--          30..33 limits that the provider reports, -1 if it does not
-- Returns  1; 0 if the call is not running, because it was reported before or its lease has expired
local state, calls, reserved = KEYS[1], KEYS[2], KEYS[3]
local id, outcome, retry_after, parts = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[29])
local NAMES = {'requests', 'input_tokens', 'output_tokens', 'day_tokens'}
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local function number(field, otherwise)
    return tonumber(redis.call('HGET', state, field)) or otherwise
end
local function put(field, value)
    redis.call('HSET', state, field, string.format('%.0f', value))
end

local stored = redis.call('HGET', reserved, id)
if not stored then
    return 0
end
redis.call('ZREM', calls, id)
redis.call('HDEL', reserved, id)
local reservation = {}
for each in string.gmatch(stored, '%S+') do
    reservation[#reservation + 1] = tonumber(each)
end
local began = reservation[1]

-- Returns the limit and the window of a dimension without a configured limit, as the provider's answers report them. They are valid for an
-- hour after the last answer, but at least for two windows. If only the remaining units are reported, the limit is estimated as the largest
-- sum of these and the cost of the call. The window is a minute, or an hour or a day if the time until the reset is longer.
local function learned(index, name, minute, remaining, reset)
    local live = number(name .. '_limit_until', 0) > now
    local limit = live and number(name .. '_limit', 0) or 0
    local window = live and number(name .. '_window', minute) or minute
    if remaining < 0 then
        return limit, window
    end
    local reported, cost = tonumber(ARGV[29 + index]), tonumber(ARGV[3 + index])
    limit = reported > 0 and reported or math.max(limit, remaining + (cost >= 0 and cost or reservation[1 + index]))
    if limit == 0 then
        return 0, window
    end
    for _, factor in ipairs({60, 1440}) do
        if reset > 2 * window then -- twice, because clocks may differ
            window = minute * factor
        end
    end
    if not live or window ~= number(name .. '_window', 0) then
        -- The stored parts have another length or are out of date, so counting starts again.
        redis.call('DEL', KEYS[3 + index])
        redis.call('HDEL', state, name .. '_ever')
        put(name .. '_window_since', now)
    end
    put(name .. '_limit', limit)
    put(name .. '_window', window)
    put(name .. '_limit_until', now + math.max(2 * window, 60 * minute))
    return limit, window
end

for index, name in ipairs(NAMES) do
    local limit, window = tonumber(ARGV[7 + index]), tonumber(ARGV[11 + index])
    local cost, remaining, reset = tonumber(ARGV[3 + index]), tonumber(ARGV[15 + index]), tonumber(ARGV[19 + index])
    if limit == 0 then
        limit, window = learned(index, name, window, remaining, reset)
    end
    if limit > 0 then
        local part = window / parts
        local oldest = math.floor(now / part) - parts
        local taken = math.floor(began / part)
        -- Calls that began before the limit was known were counted only by the provider.
        local counted = reservation[10 + index] ~= 0 and began >= number(name .. '_window_since', 0)
        if counted and cost >= 0 and taken >= oldest then
            redis.call('HINCRBYFLOAT', KEYS[3 + index], string.format('%.0f', taken), cost - reservation[1 + index])
            redis.call('HINCRBYFLOAT', state, name .. '_ever', cost - reservation[1 + index])
        end
        if remaining >= 0 and reservation[6 + index] then
            -- The provider counted after this call began. Some of the usage that it counted may have left our window since then. So its
            -- count is compared with the usage in our window when the call began, plus all later usage.
            local known = reservation[6 + index] + number(name .. '_ever', 0)
            -- If the provider counts more than that, the difference counts as usage until its reset. If it counts less, nothing changes.
            local unknown = (limit - remaining) - known
            if unknown > 0 then
                local ends = now + (reset > 0 and math.min(reset, window) or window)
                local slot = math.max(oldest, math.floor((ends - window) / part) - 1)
                redis.call('HINCRBYFLOAT', KEYS[3 + index], string.format('%.0f', slot), unknown)
                redis.call('HINCRBYFLOAT', state, name .. '_ever', unknown)
            end
            put(name .. '_left', remaining)
        end
        redis.call('PEXPIRE', KEYS[3 + index], math.ceil(2 * window))
    end
end

local slots = number('slots', tonumber(ARGV[24]))
local was_probe = redis.call('HGET', state, 'probe') == id
if was_probe then
    redis.call('HDEL', state, 'probe', 'probe_until')
end
redis.call('HINCRBY', state, 'count_' .. outcome, 1)
if outcome == 'ok' then
    put('slots', math.min(tonumber(ARGV[25]), slots + 1))
    redis.call('HDEL', state, 'faults', 'open_until', 'limited_in_a_row')
elseif outcome == 'limited' then
    -- If several calls were running when the provider reached its limit, only the first report halves the slots.
    if reservation[6] == number('halvings', 0) then
        put('slots', math.max(1, math.floor(slots / 2)))
        redis.call('HINCRBY', state, 'halvings', 1)
        redis.call('HINCRBY', state, 'limited_in_a_row', 1)
    end
    local default_wait = tonumber(ARGV[28]) * 2 ^ math.min(math.max(number('limited_in_a_row', 1), 1) - 1, 6)
    put('retry_at', math.max(number('retry_at', 0), now + (retry_after >= 0 and retry_after or default_wait)))
    -- The provider has answered, so this is not a fault.
    redis.call('HDEL', state, 'faults', 'open_until')
elseif outcome == 'fault' then
    local faults = redis.call('HINCRBY', state, 'faults', 1)
    if faults == tonumber(ARGV[26]) or was_probe then
        put('open_until', now + tonumber(ARGV[27]))
        redis.call('HINCRBY', state, 'count_opened', 1)
    end
    if retry_after >= 0 then
        put('retry_at', math.max(number('retry_at', 0), now + retry_after))
    end
end
return 1
