-- Takes a seat for one stream if the tenant and the caller have a free one. Seats that are not renewed expire, by the clock of Redis.
-- If none is free, it can displace the caller's oldest seats. The processes of these streams learn that from hold_seats.lua.
-- KEYS[1]  sorted set of the tenant: seat -> expiry (ms)
-- KEYS[2]  sorted set of the caller: seat -> expiry (ms)
-- KEYS[3]  sorted set of the tenant's displaced seats: seat -> expiry (ms)
-- ARGV     seat, seconds until it expires, maximum of the tenant, maximum of the caller, 1 to displace the caller's oldest seats
-- Returns  {0 if the seat is taken, 1 if the tenant has none free, 2 if the caller has none free, then the displaced seats}
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local lapse = tonumber(ARGV[2]) * 1000
local answer = {0}

local function full()
    for number = 1, 2 do
        if redis.call('ZCARD', KEYS[number]) >= tonumber(ARGV[2 + number]) then
            return number
        end
    end
    return 0
end

for _, key in ipairs(KEYS) do
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
end
while full() > 0 do
    -- Ids grow with time, so the smallest is the oldest.
    local mine = ARGV[5] == '1' and redis.call('ZRANGE', KEYS[2], 0, -1) or {}
    table.sort(mine)
    if #mine == 0 then
        answer[1] = full()
        return answer
    end
    redis.call('ZREM', KEYS[1], mine[1])
    redis.call('ZREM', KEYS[2], mine[1])
    redis.call('ZADD', KEYS[3], now + lapse, mine[1])
    redis.call('PEXPIRE', KEYS[3], lapse + 1000)
    answer[#answer + 1] = mine[1]
end
for number = 1, 2 do
    redis.call('ZADD', KEYS[number], now + lapse, ARGV[1])
    redis.call('PEXPIRE', KEYS[number], lapse + 1000)
end
return answer
