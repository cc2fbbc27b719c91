-- Takes a place among those that all processes share, or keeps one that is held for longer. Time is the server's.
-- KEYS[1]  sorted set of the places that are held: by whom, until when (milliseconds)
-- ARGV     most places, who, milliseconds for which it is held
-- Returns  1 if the place is held, 0 if all are
-- A holder that has died gives its place back by silence: its time runs out.
local most, who, lease = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if not redis.call('ZSCORE', KEYS[1], who) and redis.call('ZCARD', KEYS[1]) >= most then
    return 0
end
redis.call('ZADD', KEYS[1], string.format('%.0f', now + lease), who)
redis.call('PEXPIRE', KEYS[1], math.max(lease, redis.call('PTTL', KEYS[1])))
return 1
