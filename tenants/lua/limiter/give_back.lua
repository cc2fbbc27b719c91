-- Returns the unused units of an earlier take to its bucket, or charges additional units.
-- KEYS[1]  hash of the bucket
-- KEYS[2]  marker of the take. It is deleted, so that a second call changes nothing.
-- ARGV     rate (units per second), burst (units), amount (units; negative charges more)
-- Returns  {1 if the marker existed else 0, remaining units as text}
local rate, burst, amount = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens, at = tonumber(bucket[1]) or burst, tonumber(bucket[2]) or now
tokens = math.min(burst, tokens + math.max(0, now - at) * rate / 1000000)

if redis.call('DEL', KEYS[2]) == 0 then
    return {0, string.format('%.6f', tokens)}
end

tokens = math.min(burst, tokens + amount)
redis.call('HSET', KEYS[1], 'tokens', string.format('%.6f', tokens), 'at', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], math.ceil((burst - tokens) / rate * 1000) + 1000)
return {1, string.format('%.6f', tokens)}
