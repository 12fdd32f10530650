"""The committed appendix in a real browser, with the network off: followed, filtered, folded, printed; and attacked."""

import csv
import io
import re
import urllib.parse
from pathlib import Path

import nbformat
import pytest

from creditaudit import paths
from creditaudit.bind import chapters, html, notebooks, pages
from creditaudit.bind.links import Links
from tests import browser as real
from tests import sample_project
from tests.hostile import HOSTILE, spread

APPENDIX = paths.PAPER / "appendix.html"
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
# The contrast, by WCAG's formula, of an element's text with the first ground behind it that is not transparent.
CONTRAST = """(selector) => {
  const rgb = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map((c) => (c /= 255) <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
  const element = document.querySelector(selector);
  let ground = element;
  while (ground.parentElement && rgb(getComputedStyle(ground).backgroundColor)[3] === 0) ground = ground.parentElement;
  const [a, b] = [getComputedStyle(element).color, getComputedStyle(ground).backgroundColor]
    .map((colour) => luminance(rgb(colour))).sort((a, b) => b - a);
  return (a + .05) / (b + .05);
}"""


@pytest.fixture(scope="module")
def desk(browser):
    """A window on the page, opened once; the tests leave it as they found it."""
    visits = real.Visits(browser, permissions=["clipboard-read", "clipboard-write"])
    visits.page = visits(APPENDIX)
    yield visits
    visits.context.close()


@pytest.fixture(scope="module")
def page(desk):
    return desk.page


@pytest.fixture(scope="module")
def phone(browser):
    visits = real.Visits(browser, **PHONE)
    yield visits(APPENDIX)
    visits.context.close()


@pytest.fixture
def register(page):
    """The study's claims, with no filter set."""
    figure = page.locator("figure.register").first
    yield figure
    for choice in figure.locator("select").all():
        choice.select_option("")


def shown(figure) -> list[dict[str, str]]:
    """The rows of the register that can be seen: their ids and what they are chosen by."""
    return figure.evaluate(
        "f => [...f.querySelectorAll('tbody tr')].filter(r => r.checkVisibility()).map(r => ({id: r.id, ...r.dataset}))"
    )


def test_the_page_opens_alone_and_without_complaint(desk):
    assert desk.page.locator("h1").is_visible()
    assert (desk.requests, desk.errors, desk.dialogs) == ([APPENDIX.as_uri()], [], [])


def test_what_a_page_tries_is_seen(visit, tmp_path):
    path = tmp_path / "page.html"
    tricks = "alert(1); console.error('a'); fetch('https://a.invalid/b'); throw Error('c')"
    path.write_text(f"<h1>x</h1><script>{tricks}</script>")
    visit(path).wait_for_timeout(200)
    assert visit.requests == [path.as_uri(), "https://a.invalid/b"]
    assert visit.dialogs == ["1"] and set(visit.errors) > {"a", "c"}


def test_every_link_leads_somewhere(page):
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    links = page.evaluate("[...document.querySelectorAll('a[href]')].map(a => a.getAttribute('href'))")
    inside = {urllib.parse.unquote(link[1:]) for link in links if link.startswith("#")}
    files = {link for link in links if not re.match(r"#|[a-z]+:", link)}
    assert inside <= set(ids) and len(inside) > 200 and len(files) > 200
    missing = [link for link in files if not (APPENDIX.parent / urllib.parse.unquote(link)).is_file()]
    assert missing == []


def test_everything_has_a_link_of_its_own(page):
    """Headings, figures, tables and claims; and from a figure to its notebook, from a claim to its section."""
    lonely = """[...document.querySelectorAll('main :is(h2, h3, figure, figure.register tbody tr)')].filter(e => {
      const place = e.id ? e : e.closest('[id]');
      return !place.querySelector(`a[href="#${CSS.escape(place.id).replaceAll('\\\\', '')}"]`);
    }).map(e => e.id || e.textContent.slice(0, 40))"""
    assert page.evaluate(lonely) == []
    unsourced = (
        "[...document.querySelectorAll('figure.figure')].filter(f => !f.querySelector('.sources a[href$=ipynb]'))"
    )
    assert page.evaluate(f"{unsourced}.length") == 0
    assert page.locator("figure.register tbody tr:not(:has(a.section))").count() == 0
    headless = "[...document.querySelectorAll('table')].filter(t => [...t.querySelectorAll('th')].some(h => !h.scope))"
    assert page.evaluate(f"{headless}.length") == 0


def test_contents_are_followed(page):
    entries = page.locator(".toc > ol > li > a").all()
    assert len(entries) > 10
    for entry in (entries[1], entries[-1]):
        entry.click()
        target = page.locator(f"[id='{entry.get_attribute('href')[1:]}']")
        page.wait_for_function(
            "e => Math.abs(e.getBoundingClientRect().top) < innerHeight", arg=target.element_handle()
        )
    page.locator(".toc summary").first.click()
    below = page.locator(".toc details[open] a").last
    below.click()
    assert page.url.endswith(below.get_attribute("href"))


@pytest.mark.parametrize("name", ["section", "method", "verdict"])
def test_the_register_is_filtered(register, name):
    every = shown(register)
    value = next(row[name] for row in every if row[name])
    register.locator(f"select[name={name}]").select_option(value)
    assert shown(register) == [row for row in every if value in row[name].split(", ")] != every


def test_a_link_to_a_row_that_is_filtered_away_shows_it(page, register):
    register.locator("select[name=verdict]").select_option("contradicted")
    hidden = register.locator("tbody tr[data-verdict=reproduced]").first
    assert not hidden.is_visible()
    page.evaluate("name => { location.hash = name }", hidden.get_attribute("id"))
    hidden.wait_for(state="visible")


def test_the_register_is_sorted_both_ways(register):
    head = register.locator("thead th", has_text="verdict")
    for direction in (False, True):
        head.locator("button").click()
        verdicts = [row["verdict"] for row in shown(register)]
        assert verdicts == sorted(verdicts, reverse=direction)
        assert head.get_attribute("aria-sort") == ("descending" if direction else "ascending")


def test_the_rows_that_are_shown_are_copied_as_csv(page, register):
    register.locator("select[name=verdict]").select_option("contradicted")
    register.locator("button.copy").click()
    page.wait_for_function("navigator.clipboard.readText().then(text => text.startsWith('\"'))")
    head, *rows = csv.reader(io.StringIO(page.evaluate("navigator.clipboard.readText()")))
    assert "verdict" in head and {len(row) for row in rows} == {len(head)}
    assert [row[head.index("claim")] for row in rows] == [row["id"] for row in shown(register)]


def test_code_folds(page):
    fold = page.locator("details.code").first
    code = fold.locator("pre").first
    assert not code.is_visible()
    fold.locator("summary").click()
    assert code.is_visible()
    fold.locator("summary").click()
    assert not code.is_visible()


def test_without_scripts_the_page_is_whole(page, browser):
    visits = real.Visits(browser, java_script_enabled=False)
    plain = visits(APPENDIX)
    for part in ("section.chapter", "figure", "figure.register tbody tr", ".toc a"):
        assert plain.locator(part).count() == page.locator(part).count() > 0
    assert plain.locator("figure.register tbody tr").last.is_visible()
    assert plain.locator("button, select").count() == 0  # nothing that would do nothing
    assert plain.locator("details.code summary").first.is_visible()
    visits.context.close()


def test_on_a_phone_only_boxes_scroll_and_say_so(phone):
    assert phone.evaluate("document.documentElement.scrollWidth") <= PHONE["viewport"]["width"]
    overflowing = """[...document.querySelectorAll('main :is(p, li, h2, h3, figcaption)')].filter(e =>
      e.checkVisibility() && e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll, .card, pre'))
      .map(e => e.textContent.slice(0, 60))"""
    assert phone.evaluate(overflowing) == []
    hints = """[...document.querySelectorAll('figure.figure')].filter(f => {
      const card = f.querySelector('.card'), hint = getComputedStyle(f.querySelector('figcaption'), '::before').content;
      return (card.scrollWidth > card.clientWidth) !== (hint !== 'none');
    }).map(f => f.id)"""
    assert phone.evaluate(hints) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_schemes(page, scheme):
    page.emulate_media(color_scheme=scheme)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 300) == (scheme == "dark")
    places = [
        "main p",
        ".subtitle",
        ".toc a",
        "figcaption",
        "main p a",
        ".provenance",
        "td.verdict",
        "summary",
        ".copy",
    ]
    contrasts = {place: page.evaluate(CONTRAST, place) for place in places}
    assert {place: value for place, value in contrasts.items() if value < 4.5} == {}
    card = page.evaluate("getComputedStyle(document.querySelector('.card')).backgroundColor")
    assert (card == "rgba(0, 0, 0, 0)") == (scheme == "light")  # figures are drawn for paper
    page.emulate_media(color_scheme="light")


def test_it_prints_without_its_controls(page):
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for part in (".copy", ".filters", "details.code", ".skip"):
        assert not page.locator(part).first.is_visible()
    assert page.locator("main p").first.is_visible() and page.locator(".scroll").first.is_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('.scroll')).overflowX") == "visible"
    page.emulate_media(media="screen", color_scheme="light")


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """A page with every hostile string in every place at once."""
    with pytest.MonkeyPatch.context() as patch:
        root = sample_project.build(tmp_path_factory.mktemp("project"), patch)
        notebooks.execute("sample", "d256_L4", "smoke", [])
        path = pages.executed_path("sample", "d256_L4", "smoke")
        before = path.read_text()
        for number, text in enumerate(HOSTILE):
            notebook = nbformat.reads(before, as_version=4)
            spread(text)(notebook.cells)
            nbformat.write(notebook, path)
            made = chapters.chapters([("sample", "d256_L4")], "smoke")
            made[0].set_name = text
            front = dict.fromkeys(("title", "subtitle", "study", "headline", "profile"), text)
            page = html.render_html(made, Links(made, "smoke", root), references=[text], verdicts=None, **front)
            (root / f"{number}.html").write_text(page)
        yield [root / f"{number}.html" for number in range(len(HOSTILE))]


def test_hostile_strings_do_nothing(visit, attacked: list[Path]):
    """Opened, hovered over, unfolded and clicked: no script runs, nothing is asked of the network, the page stays."""
    for path in attacked:
        page = visit(path)
        page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
        page.evaluate("for (const each of document.querySelectorAll('*')) each.dispatchEvent(new Event('mouseover'))")
        for link in page.locator("a:has-text('click')").all():
            link.click()
        assert page.url.partition("#")[0] == path.as_uri()
        page.close()
    assert (visit.requests, visit.errors, visit.dialogs) == ([path.as_uri() for path in attacked], [], [])
