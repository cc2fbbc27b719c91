-- Reads the state of a provider. Changes nothing.
-- KEYS[1]  to KEYS[7]: as in acquire.lua
-- ARGV     1..4 milliseconds of the windows by dimension  5 parts of a window  6..9 configured limits (0: none)
-- Returns  {current time in milliseconds, number of running calls, fields and values of the state, usage by dimension as text,
--          limits by dimension as text: the configured ones, or else those that the provider reported}
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local NAMES = {'requests', 'input_tokens', 'output_tokens', 'day_tokens'}
local used, limits = {}, {}
local function number(field, otherwise)
    return tonumber(redis.call('HGET', KEYS[1], field)) or otherwise
end
for index, name in ipairs(NAMES) do
    local limit, window = tonumber(ARGV[5 + index]), tonumber(ARGV[index])
    if limit == 0 and number(name .. '_limit_until', 0) > now then
        limit, window = number(name .. '_limit', 0), number(name .. '_window', window)
    end
    limits[index] = string.format('%.0f', limit)
    local part = window / tonumber(ARGV[5])
    local oldest, total = math.floor(now / part) - tonumber(ARGV[5]), 0
    local reply = redis.call('HGETALL', KEYS[3 + index])
    for each = 1, #reply, 2 do
        if tonumber(reply[each]) >= oldest then
            total = total + tonumber(reply[each + 1])
        end
    end
    used[index] = string.format('%.0f', total)
end
local under_way = redis.call('ZCOUNT', KEYS[2], '(' .. string.format('%.0f', now), '+inf')
return {string.format('%.0f', now), under_way, redis.call('HGETALL', KEYS[1]), used, limits}
