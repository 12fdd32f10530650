"""The appendix: numbered, captioned, self-contained, the same bytes every time; else refused."""

import base64
import hashlib
import re

import matplotlib.pyplot as plt
import nbformat
import pandas as pd
import pytest
import typst
from bs4 import BeautifulSoup

from creditaudit.bind import appendix, chapters, html, mathsvg, notebooks, pages, pdf
from creditaudit.bind.chapters import AppendixError
from creditaudit.bind.links import Links
from creditaudit.show import display
from tests import sample_project
from tests.hostile import HOSTILE, spread

SETS = ("d256_L4", "d512_L2")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The sample notebook executed for real over two sets; tests render and damage copies of it."""
    with pytest.MonkeyPatch.context() as patch:
        root = sample_project.build(tmp_path_factory.mktemp("project"), patch)
        for name in SETS:
            notebooks.execute("sample", name, "smoke", [])
        yield root


@pytest.fixture(scope="module")
def rendered(project):
    return appendix.render("smoke")


@pytest.fixture(scope="module")
def page(rendered):
    return BeautifulSoup(rendered[0].read_text(), "html.parser")


@pytest.fixture
def damaged(project):
    """Change the executed notebook of the first set, and put it back afterwards."""
    path = pages.executed_path("sample", SETS[0], "smoke")
    before = path.read_text()

    def change(edit):
        notebook = nbformat.reads(before, as_version=4)
        edit(notebook.cells)
        nbformat.write(notebook, path)

    yield change
    path.write_text(before)


def test_nothing_is_loaded_from_outside(rendered):
    page = rendered[0].read_text().replace(f"<script>{html.script()}</script>", "", 1)
    assert html.loading_or_acting(page) == []
    assert not re.search(r"<script|cdn|mathjax|require\.js|mermaid", page, re.IGNORECASE)
    assert len(page) < html.LIMIT


@pytest.mark.parametrize(
    "page",
    [
        '<img src="https://a.b/c.png">',
        '<link rel="stylesheet" href="x.css">',
        "<script>1</script>",
        "<style>@import 'x';</style>",
        "<style>p { background: url(//a.b/c) }</style>",
        '<p style="background: url(c.png)">',
        '<svg><image xlink:href="a.png"/></svg>',
    ],
)
def test_loads_are_found(page):
    assert html.loading_or_acting(page)


def test_links_are_no_loads():
    assert html.loading_or_acting('<a href="https://a.b">x</a><img src="data:image/png;base64,">') == []


def test_title_page_contents_and_numbers(page):
    assert page.h1.text == "What training depth is worth"
    assert [item.text for item in page.select(".verdicts li")] == [
        "5 reproduced",
        "1 contradicted",
        "2 inconclusive",
    ]
    assert len(page.select(".toc > ol > li")) == len(page.select("section.chapter")) == 2
    assert [item.text for item in page.select(".toc li li")] == [
        re.sub(r"^\S+ |\s*#$", "", heading.text) for heading in page.select("h3")
    ]
    assert [item.text.split(".")[0] for item in page.select("figcaption")] == [
        "Table 1",
        "Figure 1",
        "Table 2",
        "Figure 2",
    ]
    for link in page.select(".toc a"):
        assert page.find(id=link["href"].removeprefix("#"))
    ids = [item["id"] for item in page.find_all(id=True)]
    assert len(ids) == len(set(ids))


def test_tags_are_obeyed(page):
    text = page.get_text()
    assert "never shown" not in text
    assert "Full depth is worth" in text and "show_text" not in text
    assert len(page.select("footer.provenance")) == 2 and "commit 1a2b3c4" in text
    assert all(item.find_parent("details") for item in page.select(".highlight"))


def test_what_a_chapter_waits_for_is_named_once(damaged):
    reasons = ["3 runs are missing.", "3 runs are missing.", "1 seed does not decide.", "3 runs are missing."]

    def wait(cells):
        for place, why in enumerate(reasons):
            notes = {"text/markdown": {"finding": {"state": "open", "predicates": {}, "why": why}}}
            text = {"text/markdown": f"*Open: Question {place}? {why}*"}
            output = nbformat.v4.new_output("display_data", text, metadata=notes)
            cells.insert(3 + place, nbformat.v4.new_code_cell("1", outputs=[output]))

    damaged(wait)
    (made,) = chapters.chapters([("sample", SETS[0])], "smoke")
    shown = [output.data["text/markdown"] for cell in made.notebook.cells for output in cell.get("outputs", [])
             if output.get("metadata", {}).get("text/markdown", {}).get("finding")]  # fmt: skip
    assert [f"Question {place}?" in text for place, text in enumerate(shown)] == [True] * 4
    assert [why in text for why, text in zip(reasons, shown, strict=True)] == [True, False, True, False]


def test_prose_is_not_printed_twice(page):
    first, second = page.select("section.chapter")
    assert "random feature map" in first.text and "random feature map" not in second.text
    assert "The text is that of section 1" in second.text
    assert [item.text.split()[0] for item in second.select("h3")] == ["2.1", "2.2"]


def test_figures_and_formulas_speak(page):
    assert all(image["alt"] for image in page.select("img")) and len(page.select("img")) == 2
    formulas = page.select(".math svg, .math-block svg")
    assert formulas and all(formula["aria-label"] for formula in formulas)
    assert not [item for item in page.select("p, li, figcaption, td, h2, h3") if "$" in item.get_text()]


def test_same_bytes(rendered):
    before = [path.read_bytes() for path in rendered]
    assert [path.read_bytes() for path in appendix.render("smoke")] == before


def test_pdf_is_accessible(rendered):
    pdf = rendered[1].read_bytes()
    assert pdf.startswith(b"%PDF") and b"pdfuaid" in pdf
    with pytest.raises(typst.TypstError, match="missing alt text"):
        typst.compile(b'#set document(title: "x")\n= x\n$a$', pdf_standards=["ua-1"])


@pytest.mark.parametrize("text", HOSTILE)
def test_what_stands_in_a_record_or_a_name_is_text_on_the_page(project, damaged, text):
    """Read as a browser's parser reads it; the page has no tag or attribute that the templates have not."""
    damaged(spread(text))
    made = chapters.chapters([("sample", SETS[0])], "smoke")
    made[0].set_name = text
    front = {"title": text, "subtitle": text, "study": text, "headline": text, "profile": text, "verdicts": None}
    shown = html.render_html(made, Links(made, "smoke", project), references=[text], **front)
    shown = shown.replace(f"<script>{html.script()}</script>", "", 1)
    assert html.loading_or_acting(shown) == []
    page = BeautifulSoup(shown, "html.parser")
    tags = page.find_all(True)
    assert not {"script", "iframe", "form", "input", "base"} & {tag.name for tag in tags}
    assert not [name for tag in tags for name in tag.attrs if name.startswith("on")]
    assert [meta for meta in page.select("meta[http-equiv]") if meta["http-equiv"] != "Content-Security-Policy"] == []
    schemes = {link["href"].partition(":")[0] for link in page.select("a[href]") if ":" in link["href"]}
    assert schemes <= {"https"}
    assert page.h1.text == " ".join(text.split(" ")) and "49" not in page.h1.text
    assert len(page.select("figure img")) == 1


def test_the_page_forbids_the_browser_everything_but_to_show(page):
    policy = page.select_one('meta[http-equiv="Content-Security-Policy"]')["content"]
    (ours,) = page.select("script")
    digest = base64.b64encode(hashlib.sha256(ours.string.encode()).digest()).decode()
    assert "default-src 'none'" in policy and re.findall(r"script-src ([^;]*)", policy) == [f"'sha256-{digest}'"]
    assert not ours.attrs and ours.string == html.script()
    assert page.head.find(["style", "link", "script"]).find_previous("meta", attrs={"http-equiv": True})


@pytest.mark.parametrize(
    "tag",
    [
        "<p onclick=x>", "<a href='javascript:x'>", "<a href=' java\tscript:x'>", "<form>", "<base href=x>",
        "<meta http-equiv=Refresh content=0>", "<svg><a xlink:href='javascript:x'>", "<a href='vbscript:x'>",
    ],
)  # fmt: skip
def test_what_could_act_is_found(tag):
    assert html.loading_or_acting(tag)


@pytest.mark.parametrize(
    "text", ["[x](javascript:alert(1))", "`#panic()`{=typst}", "<script>alert(1)</script>", "#panic()"]
)
def test_the_pdf_has_no_link_that_runs_and_no_typst_of_others(text):
    body = pdf._typst(f"# Title\n\n{text}")
    assert "#link" not in body and "\n#panic" not in body


@pytest.mark.parametrize("need", ["alt", "caption"])
def test_figure_must_say_what_it_is(damaged, need):
    def forget(cells):
        for cell in cells:
            for output in cell.get("outputs", []):
                output.get("metadata", {}).get("image/svg+xml", {}).pop(need, None)

    damaged(forget)
    with pytest.raises(AppendixError, match=rf"sample--d256_L4.ipynb, cell \d+: a figure has no {need}"):
        appendix.render("smoke")


def test_chapter_must_have_provenance_and_title(damaged):
    damaged(lambda cells: cells.pop())
    with pytest.raises(AppendixError, match="no cell tagged 'provenance'"):
        appendix.render("smoke")
    damaged(lambda cells: cells[2].update(source="# Title\n\n### Too deep"))
    with pytest.raises(AppendixError, match="'### Too deep' skips a level"):
        appendix.render("smoke")
    damaged(lambda cells: cells[2].update(source="no heading"))
    with pytest.raises(AppendixError, match="has no title"):
        appendix.render("smoke")


def test_missing_notebook_and_bad_formula_are_named(project, damaged):
    with pytest.raises(AppendixError, match=r"d1_L1\.ipynb is missing"):
        chapters.chapters([("sample", "d1_L1")], "smoke")
    damaged(lambda cells: cells[2].update(source="# Title\n\n$\\frac{1}$"))
    with pytest.raises(AppendixError, match="sample--d256_L4: cannot draw the formula"):
        appendix.render("smoke")


def test_formula_sits_on_the_baseline():
    assert 'style="vertical-align:-0.0' in mathsvg.inline("k")
    assert 'style="vertical-align:-0.' in mathsvg.inline("g_l")
    assert "currentColor" in mathsvg.inline(r"\frac{1}{2}") and "black" not in mathsvg.inline(r"\frac{1}{2}")
    assert " id=" not in mathsvg.block(r"\begin{aligned} a &= b \\ c &= d \end{aligned}")


def test_figure_bytes_are_stable_and_heavy_ones_become_pixels(monkeypatch):
    def draw():
        fig, ax = plt.subplots()
        ax.fill_between([0, 1], [0, 1], hatch="/")
        ax.plot([0, 1], [0, 1])
        return fig

    first, second = display._drawn(draw()), display._drawn(draw())
    assert first == second and first[0] == "image/svg+xml" and first[1].startswith(b"<svg")
    monkeypatch.setattr(display, "HEAVY", 100)
    assert display._drawn(draw())[0] == "image/png"
    with pytest.raises(ValueError, match="ladder has no alt text"):
        display.show_figure(draw(), caption="x", alt=" ", name="ladder")
    plt.close("all")


def test_table_as_markdown():
    frame = pd.DataFrame({"a|b": ["x|y", None], "v": [0.12345, float("nan")], "n": [3, 4]})
    assert display.as_markdown(frame).splitlines() == [
        r"| a\|b | v | n |",
        "| :--- | ---: | ---: |",
        r"| x\|y | 0.1235 | 3 |",
        "| – | – | 4 |",
    ]


def test_rounded_numbers_of_a_column_have_the_same_digits():
    frame = pd.DataFrame({"rounded": [19.3, 22.0, -6.0], "mixed": [1e-7, 2.5, 3.0], "whole": [1.0, 2.0, 3.0]})
    rows = [row.strip("| ").split(" | ") for row in display.as_markdown(frame).splitlines()[2:]]
    assert rows == [["19.3", "1e-07", "1"], ["22.0", "2.5", "2"], ["-6.0", "3.0", "3"]]


def test_a_power_of_ten_is_written_one_way_and_no_number_is_broken():
    assert (
        chapters.unbroken("1e-07, 2e+08, 3e5, 1e-10, `1e-07`").replace("\u2060", "") == "1e-7, 2e8, 3e5, 1e-10, `1e-07`"
    )
    assert " " not in chapters.unbroken("-6.0 ± 1.0 pp") and " " not in chapters.unbroken("56.5 %")


def test_columns_are_chosen_by_name_also_where_the_name_may_not_break():
    table = chapters.unbroken("| a | 90 % interval |\n|---|---|\n| x | y |")
    assert chapters.only_columns(table, ["90 % interval"]).splitlines()[2] == "| y |"


def test_a_table_of_the_pdf_is_fitted_to_the_page_by_the_template_not_by_pandoc():
    frame = pd.DataFrame({"short": ["a"], "prose": ["many words " * 40]})
    body = pdf._typst(f"# Title\n\nD3's lead-in.\n\n{display.as_markdown(frame)}\n\n: Caption")
    assert "#fitted(" in body and "#table(" not in body
    assert "columns: 2" in body and "%" not in body
    assert "#block(sticky: true)[" in body and "D3’s" in body
