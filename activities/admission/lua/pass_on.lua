-- Passes the slots of an ending run to the activity that follows it, if no other work waits.
-- KEYS[1]  the pointer
-- ARGV     activity and grant of the ending run, and the following activity, which has the same tenant, role, origin and priority
-- Returns  "closed", the grant of the following activity, or "" if it must be offered as usual; then nothing has changed
-- Twice    "" the second time, because the run no longer holds the slots.
--
-- exchange.lua would grant the slots to the same activity, as the only candidate. If a lowered limit, a rate limit, a pause or a lost seat
-- might prevent that grant, this script returns "".

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
-- The slot of the ending run is still counted, so a scope blocks the following activity only if its use exceeds its cap.
local function is_over(scope)
    local cap = cap_of(scope, tenant, role)
    return cap ~= nil and used_of(scope) > cap
end
if #lane_scopes(parts) > 0 or pool_of(role) ~= slot.pool or seats_left(slot.pool) < 0 or full_rate_limit(tenant, role, band)
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

-- Equals `release`, `enqueue` and `take` in sequence. The counts of the scopes stay the same, and no index changes, because nothing waits.
drop_field("slots", id)
settle_charge(tenant, role, slot)
join(tenant, role, band, true)
local reached = virtual_time(domain_of(role), tenant, band)
raise_floor("role", role, band, reached)
raise_floor("domain", domain_of(role), band, reached)
slot.grant, slot.granted, slot.started = new_grant(), now, now
slot.since, slot.score = now, now + slot.score - slot.since
slot.charged = expected_seconds(tenant, role)
charge(role, tenant, slot.charged)
write_slot(following, slot)
count_start(tenant, role, slot.grant)
return slot.grant
