-- Holds the seats of a tenant's streams in one process for a while longer; those that were lost with Redis are there again.
-- KEYS[1]  sorted set of the tenant: seat -> expiry (ms)
-- KEYS[n]  sorted set of the caller of the seat ARGV[n]
-- ARGV     seconds until they lapse, then the seats
-- Returns  how many there are
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local lapse = tonumber(ARGV[1]) * 1000

for number = 2, #KEYS do
    for _, key in ipairs({KEYS[1], KEYS[number]}) do
        redis.call('ZADD', key, now + lapse, ARGV[number])
        redis.call('PEXPIRE', key, lapse + 1000)
    end
end
return #KEYS - 1
