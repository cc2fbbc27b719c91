-- Takes one of the places that all processes share, or renews a place. Places expire by the clock of Redis.
-- KEYS[1]  sorted set of the places: holder -> expiry (ms)
-- ARGV     maximum of places, holder, milliseconds until it expires
-- Returns  1 if the holder has a place, 0 if all are in use
-- If a holder dies, its place expires.
local most, holder, lease = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if not redis.call('ZSCORE', KEYS[1], holder) and redis.call('ZCARD', KEYS[1]) >= most then
    return 0
end
redis.call('ZADD', KEYS[1], string.format('%.0f', now + lease), holder)
redis.call('PEXPIRE', KEYS[1], math.max(lease, redis.call('PTTL', KEYS[1])))
return 1
