-- A run ends, and another step follows it at once: gives this the slots of the run, while nobody waits for anything.
-- KEYS[1]  the pointer
-- ARGV     activity and grant of the run that ends, and the activity that follows: of the same tenant, role and origin, equally urgent
-- Returns  "closed", the grant of the one that follows, or "" when it has to be offered like everything else; nothing has changed then
-- Twice    "" the second time: the run holds no slots any more.
--
-- The order is that of `exchange.lua`, where it would be the only candidate. Whatever might keep it from a grant there ends this with "":
-- limits that were lowered meanwhile, limits over time, pauses, seats that are gone.

if not open() then
    return CLOSED
end
local id, following = ARGV[1], ARGV[3]
local slot = read_slot(id)
if not slot or slot.grant ~= ARGV[2] or slot.started == 0 or field("again", id) or field("slots", following)
    or redis.call("HLEN", key("entries")) > 0 then
    return ""
end
local parts = lane_parts(slot.lane)
local tenant, role, band = parts.tenant, parts.role, parts.band
read_ahead(tenant, role)
-- Nothing has room for one more than its cap: the slot of the run still counts.
local function is_over(scope)
    local cap = cap_of(scope, tenant, role)
    return cap ~= nil and used_of(scope) > cap
end
if #lane_scopes(parts) > 0 or pool_of(role) ~= slot.pool or seats_left(slot.pool) < 0 or late(tenant, role, band) or role_late(role)
    or first_full(origin_scopes(parts), tenant, role) then
    return ""
end
for _, scopes in ipairs({ own_scopes(tenant, role), shared_scopes(role) }) do
    for _, scope in ipairs(scopes) do
        if is_over(scope) then
            return ""
        end
    end
end

release(id, slot.grant)
enqueue(following, tenant, role, band, now + slot.score - slot.since, parts.group, now, "", 0)
reindex()
to_start, startable[role] = 1, true
local reached = virtual_time(domain_of(role), tenant, band)
raise_floor("role", role, band, reached)
raise_floor("domain", domain_of(role), band, reached)
return take(following, role, tenant)[4]
