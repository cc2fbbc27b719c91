-- Renews the seats of a tenant's streams in one process. Creates seats again that Redis has lost.
-- KEYS[1]  sorted set of the tenant: seat -> expiry (ms)
-- KEYS[2]  sorted set of the tenant's displaced seats: seat -> expiry (ms)
-- KEYS[n]  from 3: sorted set of the caller of the seat ARGV[n - 1]: seat -> expiry (ms)
-- ARGV     seconds until they expire, then the seats
-- Returns  those of the seats that were displaced; they are not renewed
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local lapse = tonumber(ARGV[1]) * 1000
local displaced = {}

for number = 3, #KEYS do
    local seat = ARGV[number - 1]
    if redis.call('ZSCORE', KEYS[2], seat) then
        displaced[#displaced + 1] = seat
    else
        for _, key in ipairs({KEYS[1], KEYS[number]}) do
            redis.call('ZADD', key, now + lapse, seat)
            redis.call('PEXPIRE', key, lapse + 1000)
        end
    end
end
return displaced
