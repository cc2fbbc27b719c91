-- Reads a token bucket without changing it.
-- KEYS[1]  hash of the bucket
-- ARGV     rate (units per second), burst (units), cost (units)
-- Returns  {1 if the cost can be taken now else 0, remaining units as text, milliseconds until it can be taken (0 if now)}
local rate, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens, at = tonumber(bucket[1]) or burst, tonumber(bucket[2]) or now
tokens = math.min(burst, tokens + math.max(0, now - at) * rate / 1000000)

local needed = math.min(cost, burst)
if tokens < needed then
    return {0, string.format('%.6f', tokens), math.max(1, math.ceil((needed - tokens) / rate * 1000))}
end
return {1, string.format('%.6f', tokens), 0}
