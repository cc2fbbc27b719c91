-- Puts a new generation in force.
-- KEYS[1]  the pointer
-- ARGV[1]  the generation
-- ARGV[2]  epoch of the leader that wrote it
-- Returns  1 if it is in force; 0 if its data was lost, or if a later leader has already opened a generation
-- Twice    1 again, without a change.

use(ARGV[1])
local epoch = tonumber(redis.call("GET", key("epoch")))
if epoch ~= tonumber(ARGV[2]) then
    return 0
end
local current = redis.call("GET", POINTER)
if current then
    use(current)
    if tonumber(redis.call("GET", key("epoch")) or "0") > epoch then
        return 0
    end
end
redis.call("SET", POINTER, ARGV[1])
return 1
