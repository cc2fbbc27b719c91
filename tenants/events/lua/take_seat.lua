-- Takes a seat for one stream, if the tenant and the caller have one free. Seats that nobody holds any more lapse. Time is the server's.
-- KEYS[1]  sorted set of the tenant: seat -> expiry (ms)
-- KEYS[2]  sorted set of the caller, likewise
-- ARGV     seat, seconds until it lapses, most seats of the tenant, most seats of the caller
-- Returns  0 if it is taken, 1 if the tenant has none free, 2 if the caller has none
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local lapse = tonumber(ARGV[2]) * 1000

for number, key in ipairs(KEYS) do
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
    if redis.call('ZCARD', key) >= tonumber(ARGV[2 + number]) then
        return number
    end
end
for _, key in ipairs(KEYS) do
    redis.call('ZADD', key, now + lapse, ARGV[1])
    redis.call('PEXPIRE', key, lapse + 1000)
end
return 0
