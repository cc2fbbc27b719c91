-- Takes units from a token bucket that refills steadily, by the clock of Redis.
-- KEYS[1]  hash of the bucket: tokens, at (microseconds). A missing hash is a full bucket.
-- KEYS[2]  optional marker of this take. While it exists, the same take is allowed again and changes nothing.
-- ARGV     rate (units per second), burst (units), cost (units), seconds to keep the marker
-- Returns  {1 if taken else 0, remaining units as text, milliseconds until there are enough (0 if taken)}
-- A take that costs more than the burst waits for a full bucket and leaves a debt. Otherwise it could never succeed.
local rate, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens, at = tonumber(bucket[1]) or burst, tonumber(bucket[2]) or now
tokens = math.min(burst, tokens + math.max(0, now - at) * rate / 1000000)

if KEYS[2] and redis.call('EXISTS', KEYS[2]) == 1 then
    return {1, string.format('%.6f', tokens), 0}
end

local needed = math.min(cost, burst)
if tokens < needed then
    if at > now then
        -- The server's clock was set back. Refill from the new time instead of pausing until the old one.
        redis.call('HSET', KEYS[1], 'at', string.format('%.0f', now))
    end
    return {0, string.format('%.6f', tokens), math.max(1, math.ceil((needed - tokens) / rate * 1000))}
end

tokens = tokens - cost
-- %.0f and %.6f, because plain conversion to text keeps only 14 digits of the time.
redis.call('HSET', KEYS[1], 'tokens', string.format('%.6f', tokens), 'at', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], math.ceil((burst - tokens) / rate * 1000) + 1000)
if KEYS[2] then
    redis.call('SET', KEYS[2], ARGV[3], 'EX', ARGV[4])
end
return {1, string.format('%.6f', tokens), 0}
