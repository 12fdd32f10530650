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
    "#image(" .. quoted(picture.src) .. ", alt: " .. quoted(notes.described or "") .. ", width: " .. notes.width .. ");")
end

-- ::: {.note} and ::: {.provenance} become calls of the functions of these names in book.typ.
function Div(block)
  for _, name in ipairs({ "note", "provenance" }) do
    if block.classes:includes(name) then
      local body = pandoc.Blocks({ pandoc.RawBlock("typst", "#" .. name .. "[") })
      body:extend(block.content)
      body:insert(pandoc.RawBlock("typst", "]"))
      return body
    end
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

-- A heading's lead-in stays on the page of the figure or table that follows, and with it the heading.
function Blocks(blocks)
  local kept = pandoc.Blocks({})
  for i, block in ipairs(blocks) do
    local leader, follower = blocks[i - 1], blocks[i + 1]
    if block.t == "Para" and leader and leader.t == "Header" and follower and (follower.t == "Figure" or follower.t == "Table") then
      kept:extend({ pandoc.RawBlock("typst", "#block(sticky: true)["), block, pandoc.RawBlock("typst", "]") })
    else
      kept:insert(block)
    end
  end
  return kept
end
