"""JupyterLab in a real browser: a training in the playground, the tutorials, a first cell with bad values."""

import json
import socket

import pytest

from creditaudit import paths
from creditaudit.engine.spec import RunSpec
from creditaudit.study import params, sections
from tests.jupyter import PATIENCE, TOKEN, served

SIZE = {
    '"width": 256, "depth": 4, "epochs": 3, "seeds": [42], "data": "cifar10"}': (
        '"width": 16, "depth": 2, "epochs": 2, "seeds": [42], "data": "tiny"}'
    ),
    "controls = Panel()": 'controls = Panel(data="tiny", method="fa", width=64, depth=2, epochs=3)',
    "seeds: list[int] = [42, 123, 456, 7, 8]": "seeds: list[int] = [42]",
}
PICTURE = ".jp-RenderedImage img"


@pytest.fixture(scope="module")
def lab(browser, tmp_path_factory):
    with served(tmp_path_factory.mktemp("lab"), SIZE) as server:
        yield server


@pytest.fixture
def context(browser):
    window = browser.new_context(viewport={"width": 1300, "height": 900})
    yield window
    window.close()


@pytest.fixture
def notebook(lab, context):
    return lambda name: lab.open(context, name)


def test_the_server_hears_this_machine_alone_and_asks_for_its_token(lab):
    assert (lab.status("/api/contents"), lab.status("/api/contents", "a guess")) == (403, 403)
    assert lab.status("/api/contents", TOKEN) == 200
    with socket.socket() as place:
        place.settimeout(2)
        assert place.connect_ex(("127.0.0.2", lab.port))  # one that listens everywhere would answer


def test_the_start_page_leads_to_the_playground(notebook):
    start = notebook("start.ipynb")
    start.page.get_by_role("link", name="playground").click()
    start.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)").get_by_role("heading", name="In one line").wait_for()
    assert start.page.get_by_text("Jupyter news").count() == 0


def row(page, name):
    """A line of the table of lights: (setting, epoch, ..., state)."""
    return page.locator(".jp-RenderedMarkdown tr", has=page.get_by_role("cell", name=name, exact=True))


def test_a_training_in_the_playground(lab, notebook, monkeypatch):
    book = notebook("playground.ipynb")
    page = book.page
    book.run(1)
    button = {name: page.get_by_role("button", name=name, exact=True) for name in ("Train", "Train beside", "Stop")}
    button["Train"].click()
    row(page, "FA").get_by_text("3/3").wait_for()
    page.get_by_text("Done in").wait_for()  # the frozen twin too, which D3 needs
    assert row(page, "FA").get_by_text("open").count() == 0  # three lights have turned

    page.get_by_label("rule").select_option("DFA: direct feedback alignment")
    page.get_by_label("penalty λ").select_option("0.003")
    page.get_by_label("epochs").fill("900")
    page.get_by_label("epochs").press("Enter")
    button["Train beside"].click()
    first, picture = _moved(page, "DFA λ=0.003"), page.locator(PICTURE).first.get_attribute("src")
    later = _moved(page, "DFA λ=0.003", first)
    assert 0 < first < later < 900  # points moved while it trained
    page.wait_for_function("old => document.querySelector('.jp-RenderedImage img').src != old", arg=picture)
    assert button["Stop"].is_enabled()
    button["Stop"].click()
    row(page, "DFA λ=0.003").get_by_text("stopped").wait_for()
    assert row(page, "FA").count() == 1 and later <= _epoch(page, "DFA λ=0.003") < 900  # both are kept

    page.get_by_label("section", exact=True).select_option("penalty_rescue")
    page.get_by_label("name", exact=True).fill("mine")
    page.get_by_role("button", name="Save as set").click()
    page.get_by_text("epochs: a set has one").wait_for()  # these have 3 and 900

    page.get_by_label("epochs").fill("3")
    page.get_by_label("epochs").press("Enter")
    button["Train"].click()
    row(page, "DFA λ=0.003").get_by_text("done").wait_for()
    page.get_by_role("button", name="Save as set").click()
    page.get_by_text("make reproduce SECTION=penalty_rescue SET=mine").wait_for()
    monkeypatch.setattr(paths, "PARAMS", lab.root / "params")
    asked = sections.runs_of("penalty_rescue", params.parameters("penalty_rescue", "mine", "paper"))
    assert RunSpec(method="dfa", penalty=0.003, data="tiny", width=64, depth=2, epochs=3) in asked  # a valid set

    kept = [output.get("data", {}) for output in book.save()["cells"][1]["outputs"]]
    assert any("image/png" in data for data in kept)  # the last picture stays
    assert any("| DFA λ=0.003 | 3/3 |" in "".join(data.get("text/markdown", "")) for data in kept)


def _epoch(page, name):
    return int(row(page, name).get_by_role("cell").nth(1).inner_text().split("/")[0])


def _moved(page, name, before=0):
    for _ in range(600):
        if (now := _epoch(page, name)) > before:
            return now
        page.wait_for_timeout(50)
    raise AssertionError(f"{name} stays at {before}")


def test_every_control_of_the_playground_is_labelled_and_reached_with_tab(notebook):
    book = notebook("playground.ipynb")
    book.run(1)
    book.page.get_by_label("rule").focus()
    named = []
    for _ in range(14):
        named.append(book.page.evaluate("(e => e.labels?.[0]?.innerText || e.innerText)(document.activeElement)"))
        book.page.keyboard.press("Tab")
    fields = ["rule", "width d", "blocks L", "trained blocks k", "penalty λ", "credit scaled", "epochs", "seed"]
    rest = ["Train", "Train beside", "train the frozen twin too, for D3", "section", "name", "Save as set"]
    assert named == fields + rest


@pytest.mark.parametrize(("name", "shown"), [("audit_your_own", "D2"), ("your_own_rule", "| DRTP |")])
def test_a_tutorial_runs_top_to_bottom(notebook, name, shown):
    book = notebook(f"{name}.ipynb")
    book.menu("Run", "Run All Cells")
    for _ in range(2 * PATIENCE // 1000):
        code = [cell for cell in book.save()["cells"] if cell["cell_type"] == "code"]
        if all(cell["execution_count"] for cell in code):
            break
        book.page.wait_for_timeout(1000)
    outputs = [output for cell in code for output in cell["outputs"]]
    assert all(cell["execution_count"] for cell in code) and not [o for o in outputs if o["output_type"] == "error"]
    assert any(shown in "".join(o.get("data", {}).get("text/markdown", "")) for o in outputs)


BAD = {  # in a first cell: what stands there -> what somebody writes
    "seeds: list[int] = [42, 123, 456]": "seeds: list[int] = 7",
    'methods: list[str] = ["bp", "fa", "dfa"]': 'methods: list[str] = ["bp", "dfaa"]',
    "epochs: int = 100": "epcohs: int = 100",
}


def test_a_bad_value_in_a_first_cell_is_one_sentence(notebook):
    book = notebook("depth_ladder.ipynb")
    source = "".join(json.loads(book.path.read_text())["cells"][0]["source"])
    for good, bad in BAD.items():
        assert good in source
        book.run(0, source.replace(good, bad))
        said = book.run(2).get_by_text(bad.split(":")[0])
        said.wait_for()
        assert "Traceback" not in said.inner_text() and len(said.inner_text().splitlines()) == 1


def test_run_all_ends_where_it_asks_before_it_trains(notebook):
    """JupyterLab leaves a reader at the page's end; the sentence that waits for an answer must be in sight."""
    book = notebook("depth_ladder.ipynb")
    source = "".join(json.loads(book.path.read_text())["cells"][0]["source"])
    book.run(0, source.replace("[42, 123, 456]", "[42, 123, 456, 7]"))
    book.menu("Run", "Run All Cells")
    said = book.page.get_by_text("run this cell again to train them")
    said.wait_for(state="attached")
    book.page.wait_for_timeout(3000)
    place = said.bounding_box()
    assert place and 0 <= place["y"] <= 900 - place["height"]
