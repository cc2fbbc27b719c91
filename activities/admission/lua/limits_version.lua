-- Returns the version of the limits in force, which every change raises.
-- KEYS[1]  the pointer
-- ARGV     none
-- Returns  the version, 0 before the first change, -1 if closed

if not open() then
    return -1
end
return tonumber(redis.call("GET", key("limits_version"))) or 0
