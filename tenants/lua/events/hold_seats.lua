-- Holds the seats of a tenant's streams in one process for a while longer; those that were lost with Redis are there again.
-- KEYS[1]  sorted set of the tenant: seat -> expiry (ms)
-- KEYS[2]  sorted set of the seats of the tenant that were taken away, likewise
-- KEYS[n]  sorted set of the caller of the seat ARGV[n - 1]
-- ARGV     seconds until they lapse, then the seats
-- Returns  those of them that were taken away
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local lapse = tonumber(ARGV[1]) * 1000
local gone = {}

for number = 3, #KEYS do
    local seat = ARGV[number - 1]
    if redis.call('ZSCORE', KEYS[2], seat) then
        gone[#gone + 1] = seat
    else
        for _, key in ipairs({KEYS[1], KEYS[number]}) do
            redis.call('ZADD', key, now + lapse, seat)
            redis.call('PEXPIRE', key, lapse + 1000)
        end
    end
end
return gone
