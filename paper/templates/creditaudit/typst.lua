-- What pandoc's typst writer leaves out: the alternative text of formulas and pictures.
local function quoted(text)
  return '"' .. text:gsub("\\", "\\\\"):gsub('"', '\\"'):gsub("%s+", " ") .. '"'
end

function Math(formula)
  local body = pandoc.write(pandoc.Pandoc({ pandoc.Plain({ formula }) }), "typst"):gsub("%s+$", "")
  return pandoc.RawInline("typst", "#eq(" .. quoted(formula.text) .. ", " .. body .. ");")
end

function Image(picture)
  local notes = picture.attributes
  return pandoc.RawInline("typst",
    "/*" .. notes.number .. (notes.stays and " stays" or "") .. "*/#image(" .. quoted(picture.src) .. ", alt: " .. quoted(notes.described or "") .. ", width: " .. notes.width .. ");")
end

-- ::: {.note}, ::: {.part} and ::: {.provenance} become calls of the functions of these names in book.typ.
function Div(block)
  for _, name in ipairs({ "note", "part", "provenance" }) do
    if block.classes:includes(name) then
      local body = pandoc.Blocks({ pandoc.RawBlock("typst", "#" .. name .. "[") })
      body:extend(block.content)
      body:insert(pandoc.RawBlock("typst", "]"))
      return body
    end
  end
end

-- A table's cell that holds a verdict gets its sign.
local verdicts = { reproduced = true, contradicted = true, inconclusive = true }
function Plain(words)
  local text = pandoc.utils.stringify(words)
  if verdicts[text] then
    return pandoc.Plain({ pandoc.RawInline("typst", "#verdict(" .. quoted(text) .. ");") })
  end
end

-- A line of ids, which cannot be broken, is not stretched either.
function Para(words)
  local codes = 0
  for _, word in ipairs(words.content) do codes = codes + (word.t == "Code" and 1 or 0) end
  if codes > 1 and #words.content < 4 * codes + 1 then
    return { pandoc.RawBlock("typst", "#block[#set par(justify: false)"), words, pandoc.RawBlock("typst", "]") }
  end
end

-- A link leads to a page, an address or a place in this book; any other (javascript:, file:) is its words alone.
function Link(link)
  local scheme = link.target:lower():gsub("%s", ""):match("^([a-z][a-z0-9+.-]*):")
  if scheme and scheme ~= "http" and scheme ~= "https" and scheme ~= "mailto" then
    return link.content
  end
end

-- The parameter set beside a chapter's title.
function Span(words)
  if words.classes:includes("set") then
    return pandoc.RawInline("typst", "#set-name(" .. quoted(pandoc.utils.stringify(words)) .. ");")
  end
end

-- After a digit typst takes an apostrophe for a prime: D3's.
function Str(word)
  local before, after = word.text:match("^(.*%d)\u{2019}(.*)$")
  if before then
    return { pandoc.Str(before), pandoc.RawInline("typst", "\u{2019}"), pandoc.Str(after) }
  end
end

-- What the PDF leaves out keeps its number: each figure and table sets the counter to its own.
local function numbered(block)
  local kind, number, stays = "table", nil, nil
  if block.t == "Table" then
    number = block.attributes.number
  elseif block.t == "Figure" then
    kind = "image"
    block:walk({ RawInline = function(raw)
      number = number or raw.text:match("^/%*(%d+)")
      stays = stays or raw.text:match("^/%*%d+ stays")
    end })
  end
  return number and pandoc.RawBlock("typst", "#counter(figure.where(kind: " .. kind .. ")).update(" .. number - 1 .. ")"), stays
end

-- A heading's lead-in stays on the page of the figure or table that follows, and with it the heading.
function Blocks(blocks)
  local kept = pandoc.Blocks({})
  for i, block in ipairs(blocks) do
    local leader, follower = blocks[i - 1], blocks[i + 1]
    local number, stays = numbered(block)
    if number then kept:insert(number) end
    if block.t == "Para" and leader and leader.t == "Header" and follower and (follower.t == "Figure" or follower.t == "Table") then
      kept:extend({ pandoc.RawBlock("typst", "#block(sticky: true)["), block, pandoc.RawBlock("typst", "]") })
    elseif stays then
      kept:extend({ pandoc.RawBlock("typst", "#in-place["), block, pandoc.RawBlock("typst", "]") })
    else
      kept:insert(block)
    end
  end
  return kept
end
