-- Releases slots, withdraws and adds waiters, then grants slots to waiters in their order. All of this is one atomic step.
-- KEYS[1]  the pointer
-- ARGV[1]  JSON {"release": [[id, grant, 1 if the grant started nothing, else 0]...], "withdraw": [id...],
--                "offer": [[id, tenant, role, band, score ms, lane key, since ms, files, express ms or 0]...],
--                "hold": [[tenant, role, 1 to hold urgent work as well or 0, ms, code, holder]...],
--                "limit": maximum of grants, "ageing_ms": n, "share": n, "start_roles": [role...], "start": n}
--          `start`: up to so many grants of `start_roles` are started immediately, for the calling worker.
-- Returns  "closed", or JSON {"grants": [[id, tenant, role, grant, started 0 or 1]...], "ask": ms after which to call again, or missing,
--          "waits": true, or missing if no work waits any more}
-- Twice    Unchanged offers, withdrawals and releases have no effect. A release names its grant, so it cannot release a later one.

if not open() then
    return CLOSED
end
local request = cjson.decode(ARGV[1])

local slots, entries = {}, {}
for _, items in ipairs({ request.release, request.offer }) do
    for _, item in ipairs(items) do
        slots[#slots + 1] = item[1]
    end
end
for _, item in ipairs(request.offer) do
    entries[#entries + 1] = item[1]
end
for _, id in ipairs(request.withdraw) do
    entries[#entries + 1] = id
end
read_fields("slots", slots)
read_fields("entries", entries)
read_fields("again", slots)

mark_due_places()
for _, item in ipairs(request.hold) do
    hold_back(item[1], item[2], item[3] == 1, item[4], item[5], item[6])
end
for _, item in ipairs(request.release) do
    release(item[1], item[2], item[3] == 1)
end
for _, id in ipairs(request.withdraw) do
    drop_field("again", id)
    if field("entries", id) then
        dequeue(id)
    else
        local slot = read_slot(id)
        if slot and slot.started == 0 then
            release(id, slot.grant)
        end
    end
end
for _, item in ipairs(request.offer) do
    enqueue(item[1], item[2], item[3], item[4], item[5], item[6], item[7], item[8], item[9])
end
reindex()

starts_left = request.start
for _, role in ipairs(request.start_roles) do
    startable_roles[role] = true
end

local grants = grant_express(request.limit)
prepare_candidates()
while #grants < request.limit do
    local granted = grant_next(request.ageing_ms, request.share)
    if not granted then
        break
    end
    grants[#grants + 1] = granted
end
local ask, waits = ms_until_next_call(), nil
for _, waiting in pairs(all_fields("waiting")) do
    if waiting then
        waits = true
    end
end
if #grants == 0 and not ask and not waits then
    return "{}"
end
return cjson.encode({ grants = #grants > 0 and grants or nil, ask = ask, waits = waits })
