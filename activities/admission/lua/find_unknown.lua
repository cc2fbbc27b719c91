-- Returns the offers that would change something. An offer changes nothing if its activity already waits as offered (in that lane, with
-- that score, express if the offer is), holds a slot that has not started, or has an earlier offer stored until its slot is released.
-- KEYS[1]  the pointer
-- ARGV[1]  JSON: offers in the format of exchange.lua
-- Returns  "closed", or JSON [id...]

if not open() then
    return CLOSED
end
local offers, ids = cjson.decode(ARGV[1]), {}
for i, offer in ipairs(offers) do
    ids[i] = offer[1]
end
read_fields("slots", ids)
read_fields("entries", ids)
local unknown = {}
for _, offer in ipairs(offers) do
    local id, tenant, role, band, score, group, express = offer[1], offer[2], offer[3], offer[4], offer[5], offer[6], offer[9]
    local slot, known = field("slots", id), nil
    if slot then
        known = split(slot, "|", 3)[2] == "0" or field("again", id)
    else
        known = is_in_place(id, lane_name(tenant, role, tonumber(band), group), score)
            and (express == 0 or is_express(tenant, id))
    end
    if not known then
        unknown[#unknown + 1] = id
    end
end
if #unknown == 0 then
    return "[]"
end
return cjson.encode(unknown)
