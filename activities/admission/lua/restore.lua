-- Writes waiters and held slots from PostgreSQL into a generation under construction, or into the one in force.
-- KEYS[1]  the pointer
-- ARGV[1]  generation; empty for the one in force
-- ARGV[2]  JSON {"hold": [[id, tenant, role, band, lane key, grant, seated 0 or 1, files]...],
--                "offer": [[id, tenant, role, band, score ms, lane key, since ms, files, express ms or 0]...],
--                "starts": [[tenant, role, grant, age ms]...] of the last minute, "tokens": [[tenant, role, tokens]...]}
-- Returns  1, or -1 if closed
-- Twice    Existing entries stay unchanged, but a held slot gets the grant from the request, and counts as started.
-- Held slots are counted even if they exceed a cap, because runs use them.

if ARGV[1] ~= "" then
    use(ARGV[1])
elseif not open() then
    return -1
end
local request = cjson.decode(ARGV[2])
for _, item in ipairs(request.hold) do
    local id = item[1]
    local slot = read_slot(id)
    if not slot then
        if field("entries", id) then
            dequeue(id)
        end
        local lane = lane_name(item[2], item[3], item[4], item[5])
        local pool = item[7] == 1 and pool_of(item[3]) or ""
        hold(id, { lane = lane, parts = lane_parts(lane), score = now, since = now, files = item[8] }, pool, item[6], now)
    elseif slot.grant ~= item[6] or slot.started == 0 then
        slot.grant = item[6]
        start_slot(id, slot)
    end
end
for _, item in ipairs(request.offer) do
    enqueue(item[1], item[2], item[3], item[4], item[5], item[6], item[7], item[8], item[9])
end
for _, item in ipairs(request.starts) do
    local scope = window_of(item[1], item[2])
    if scope then
        windows[scope] = nil
        redis.call("ZADD", key(scope), now - item[4], item[3])
        redis.call("PEXPIRE", key(scope), MINUTE)
    end
end
for _, item in ipairs(request.tokens) do
    put_tokens(item[1], item[2], item[3])
    tenant_changed(item[1], item[2])
end
reindex()
return 1
