-- Decides whether two sets of paths and globs may name a common file. In doubt, the answer is true.
-- Contains pure functions only. It is prepended to each admission script. See activities/file_scopes.py for the meaning of paths.
-- KEYS[1]  not used here

local WILD, NO_WILD = "[*?%[{]", "[^*?%[%]{}]*$"

-- Compares two path segments. The texts before their first wildcards must be compatible, and so must the texts after their last wildcards.
local function parts_may_meet(a, b)
    if a == b then
        return true
    end
    local wild_a, wild_b = string.find(a, WILD), string.find(b, WILD)
    if not wild_a and not wild_b then
        return false
    end
    local head_a, head_b = wild_a and string.sub(a, 1, wild_a - 1) or a, wild_b and string.sub(b, 1, wild_b - 1) or b
    local tail_a, tail_b = wild_a and string.match(a, NO_WILD) or a, wild_b and string.match(b, NO_WILD) or b
    if (not wild_a and #a < #head_b + #tail_b) or (not wild_b and #b < #head_a + #tail_a) then
        return false
    end
    local head, tail = math.min(#head_a, #head_b), math.min(#tail_a, #tail_b)
    return string.sub(head_a, 1, head) == string.sub(head_b, 1, head)
        and string.sub(tail_a, #tail_a - tail + 1) == string.sub(tail_b, #tail_b - tail + 1)
end

-- Returns the segments of a path, the positions of the first and last ** among them, and whether the last segment looks like a file name.
local function read_path(path)
    local read = { parts = {} }
    for part in string.gmatch(path, "[^/]+") do
        read.parts[#read.parts + 1] = part
        if string.find(part, "**", 1, true) then
            read.first, read.last = read.first or #read.parts, #read.parts
        end
    end
    local name = read.parts[#read.parts] or ""
    read.is_file = string.find(name, ".", 2, true) ~= nil
    return read
end

local function paths_may_meet(a, b)
    -- Compare the segments before any **. If neither path has a **, the shorter one may be a folder that contains the longer one.
    for i = 1, math.min(a.first and a.first - 1 or #a.parts, b.first and b.first - 1 or #b.parts) do
        if not parts_may_meet(a.parts[i], b.parts[i]) then
            return false
        end
    end
    if not a.first and not b.first then
        return true
    end
    -- A path that may be a folder may contain files with any ending.
    if not a.is_file or not b.is_file then
        return true
    end
    for i = 0, math.min(#a.parts - (a.last or 0), #b.parts - (b.last or 0)) - 1 do
        if not parts_may_meet(a.parts[#a.parts - i], b.parts[#b.parts - i]) then
            return false
        end
    end
    return true
end

local paths_read = {}

-- Returns whether two sets of paths, each separated by newlines, may name a common file. Each set is parsed once per call of the script.
local function files_may_meet(one, other)
    if one == other then
        return true
    end
    for _, text in ipairs({ one, other }) do
        if not paths_read[text] then
            local paths = {}
            for path in string.gmatch(text, "[^\n]+") do
                paths[#paths + 1] = read_path(path)
            end
            paths_read[text] = paths
        end
    end
    for _, a in ipairs(paths_read[one]) do
        for _, b in ipairs(paths_read[other]) do
            if paths_may_meet(a, b) then
                return true
            end
        end
    end
    return false
end
