-- A call has ended. Gives its slot back, settles what it had reserved, learns from the answer.
-- KEYS[1]  and the six that follow: as in ask.lua
-- ARGV     1 call id  2 outcome: ok, limited, fault or other  3 milliseconds of Retry-After, -1 if none was given
--          4..7 what it really cost by dimension, -1 where that is unknown
--          8..11 limits  12..15 milliseconds of their windows
--          16..19 what the provider says is left, -1 where it says nothing  20..23 milliseconds until its reset, -1 likewise
--          24 slots to begin with  25 most slots  26 faults that open the breaker  27 milliseconds of its cooldown
--          28 milliseconds to wait after a 429 without Retry-After  29 parts of a window
-- Returns  1, or 0 when this call is not under way: it was told before, or its lease has ended
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

local held = redis.call('HGET', reserved, id)
if not held then
    return 0
end
redis.call('ZREM', calls, id)
redis.call('HDEL', reserved, id)
local kept = {}
for each in string.gmatch(held, '%S+') do
    kept[#kept + 1] = tonumber(each)
end
local began = kept[1]

for index, name in ipairs(NAMES) do
    local limit, window = tonumber(ARGV[7 + index]), tonumber(ARGV[11 + index])
    local cost, left, reset = tonumber(ARGV[3 + index]), tonumber(ARGV[15 + index]), tonumber(ARGV[19 + index])
    if limit > 0 then
        local part = window / parts
        local oldest = math.floor(now / part) - parts
        local taken = math.floor(began / part)
        if cost >= 0 and taken >= oldest then
            redis.call('HINCRBYFLOAT', KEYS[3 + index], string.format('%.0f', taken), cost - kept[1 + index])
            redis.call('HINCRBYFLOAT', state, name .. '_ever', cost - kept[1 + index])
        end
        if left >= 0 and kept[6 + index] then
            -- The provider counted at some moment since this call began. By now some of what it counted has left our window, so it is
            -- compared with what was in the window when the call began and all that was taken since.
            local known = kept[6 + index] + number(name .. '_ever', 0)
            -- The provider counts more than we know of, until its reset. That it counts less is no reason to trust it more.
            local unknown = (limit - left) - known
            if unknown > 0 then
                local ends = now + (reset > 0 and math.min(reset, window) or window)
                local slot = math.max(oldest, math.floor((ends - window) / part) - 1)
                redis.call('HINCRBYFLOAT', KEYS[3 + index], string.format('%.0f', slot), unknown)
                redis.call('HINCRBYFLOAT', state, name .. '_ever', unknown)
            end
            put(name .. '_left', left)
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
    redis.call('HDEL', state, 'faults', 'open_until')
elseif outcome == 'limited' then
    -- Of all calls that were under way when the provider had enough, the first to say so halves the slots.
    if kept[6] == number('halvings', 0) then
        put('slots', math.max(1, math.floor(slots / 2)))
        redis.call('HINCRBY', state, 'halvings', 1)
    end
    put('retry_at', math.max(number('retry_at', 0), now + (retry_after >= 0 and retry_after or tonumber(ARGV[28]))))
    -- Somebody is there and answers, so this is no fault.
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
