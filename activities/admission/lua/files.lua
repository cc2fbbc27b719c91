-- Decides whether two sets of paths and globs may name a common file. In doubt, the answer is true.
-- Contains pure functions only. It is prepended to each admission script. See activities/file_scopes.py for the meaning of paths.
-- KEYS[1]  not used here

-- Redis answers nobody else meanwhile, so one call of a script compares only so many segments of paths of a tenant, some milliseconds.
-- Further sets count as overlapping: their work waits for the present holder, and is compared again afterwards.
local MOST_COMPARED = 40000
local compared = {} -- by tenant

local WILD, NO_WILD = "[*?%[{]", "[^*?%[%]{}]*$"

local segments = {} -- by text, so that equal ones are the same table

-- Returns a segment of a path: its text, and the texts before its first and after its last wildcard, if it has any.
local function read_segment(text)
    local segment = segments[text]
    if not segment then
        local wild = string.find(text, WILD)
        local head, tail = wild and string.sub(text, 1, wild - 1) or text, wild and string.match(text, NO_WILD) or text
        segment = { text = text, wild = wild, head = head, tail = tail }
        segments[text] = segment
    end
    return segment
end

-- Compares two segments. The texts before their first wildcards must be compatible, and so must the texts after their last wildcards.
local function parts_may_meet(a, b)
    if a == b then
        return true
    end
    if not a.wild and not b.wild then
        return false
    end
    if (not a.wild and #a.text < #b.head + #b.tail) or (not b.wild and #b.text < #a.head + #a.tail) then
        return false
    end
    local head, tail = math.min(#a.head, #b.head), math.min(#a.tail, #b.tail)
    return string.sub(a.head, 1, head) == string.sub(b.head, 1, head)
        and string.sub(a.tail, #a.tail - tail + 1) == string.sub(b.tail, #b.tail - tail + 1)
end

-- Returns the segments of a path, the positions of the first and last ** among them, and whether the last segment looks like a file name.
local function read_path(path)
    local read, name = { parts = {} }, ""
    for part in string.gmatch(path, "[^/]+") do
        read.parts[#read.parts + 1] = read_segment(part)
        name = part
        if string.find(part, "**", 1, true) then
            read.first, read.last = read.first or #read.parts, #read.parts
        end
    end
    read.is_file = string.find(name, ".", 2, true) ~= nil
    return read
end

-- Returns whether two paths may meet, and how many segments were compared.
local function paths_may_meet(a, b)
    -- Compare the segments before any **. If neither path has a **, the shorter one may be a folder that contains the longer one.
    for i = 1, math.min(a.first and a.first - 1 or #a.parts, b.first and b.first - 1 or #b.parts) do
        if not parts_may_meet(a.parts[i], b.parts[i]) then
            return false, i
        end
    end
    -- A path that may be a folder may contain files with any ending.
    if (not a.first and not b.first) or not a.is_file or not b.is_file then
        return true, 0
    end
    for i = 0, math.min(#a.parts - (a.last or 0), #b.parts - (b.last or 0)) - 1 do
        if not parts_may_meet(a.parts[#a.parts - i], b.parts[#b.parts - i]) then
            return false, #a.parts
        end
    end
    return true, 0
end

local paths_read = {}

-- Returns whether two sets of paths of a tenant, each separated by newlines, may name a common file. Each set is parsed once per call of
-- the script.
local function files_may_meet(one, other, tenant)
    local spent = compared[tenant] or 0
    if one == other or spent > MOST_COMPARED then
        return true
    end
    for _, text in ipairs({ one, other }) do
        if not paths_read[text] then
            local paths = {}
            for path in string.gmatch(text, "[^\n]+") do
                paths[#paths + 1] = read_path(path)
                spent = spent + #paths[#paths].parts
            end
            paths_read[text] = paths
        end
    end
    local meet = false
    for _, a in ipairs(paths_read[one]) do
        for _, b in ipairs(paths_read[other]) do
            local steps
            meet, steps = paths_may_meet(a, b)
            spent = spent + steps
            if meet or spent > MOST_COMPARED then
                compared[tenant] = spent
                return true
            end
        end
    end
    compared[tenant] = spent
    return false
end
