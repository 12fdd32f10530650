"""`%%finding`: three states, what counts as a predicate, and the magic in a real shell."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from jinja2 import UndefinedError
from traitlets.config import Config

from creditaudit.show import finding
from creditaudit.show.finding import render
from creditaudit.study.sample import Sample

UP, DOWN = Sample({0: 5.0, 1: 5.1, 2: 5.2}), Sample({0: -3.0, 1: -3.1, 2: -3.2})
ONE = Sample({0: 5.0})
NAMES = {"gain": {"bp": UP, "dfa": DOWN}, "one": ONE, "depth": 12}
BODY = "**It pays** with {{ depth }} blocks: {{ gain.bp }}.\n\nAnd costs: {{ gain['dfa'].short }}.\n"


# ---- states ------------------------------------------------------------------------------------------------


def test_all_true_holds():
    found = render('gain["bp"].above(2); gain["dfa"].below(0)', BODY, NAMES)
    assert found.state == "holds"
    assert found.text == f"**It pays** with 12 blocks: {UP}.\n\nAnd costs: {DOWN.short}."
    assert found.predicates == {'gain["bp"].above(2)': True, 'gain["dfa"].below(0)': True}


def test_one_false_fails_even_beside_an_open_one():
    found = render('one.above(2); gain["bp"].above(9); gain["dfa"].below(0)', BODY, NAMES)
    assert found.state == "fails"
    assert list(found.predicates.values()) == [None, False, True]
    quoted = [text for text in found.text.splitlines() if text.startswith(">")]
    assert str(UP) in quoted[0] and DOWN.short in quoted[-1]
    last = found.text.splitlines()[-1]
    assert last.endswith(f"{UP} is not above 9.") and str(NAMES["one"]) not in last
    assert "`depth > 12`" in render("depth > 12", BODY, NAMES).text  # what asks no sample is shown as it is


def test_otherwise_it_is_open_and_the_body_waits():
    found = render('one.above(2); gain["dfa"].below(0)', "{{ not_there_yet }}", NAMES)
    assert found.state == "open"
    assert found.predicates == {"one.above(2)": None, 'gain["dfa"].below(0)': True}
    assert found.text.count("\n") == 0
    assert found.text.startswith("*Open: ") and str(NAMES["one"]) in found.text and "above 2" in found.text
    assert "within 0 to 9" in render("one.within(0, 9)", "", NAMES).text
    assert render("one.within(*[0, 9])", "", NAMES).text == render("one.within(0, 9)", "", NAMES).text


def test_an_open_finding_asks_what_stands_in_bold():
    assert render("None", "**It pays:** {{ gain.bp }}", NAMES).text.startswith("*Open: It pays? ")
    assert "{{" not in render("None", "**It pays {{ gain.bp }}.** So much.", NAMES).text


def test_an_open_finding_names_the_missing_runs():
    asked = [SimpleNamespace(seed=seed) for seed in (1, 2)]
    runs = SimpleNamespace(missing=["bp-s2"], coverage=lambda: "Three runs to go.", specs=asked)
    assert render("one.above(2)", "", {**NAMES, "runs": runs}).text == "*Open: Three runs to go.*"
    runs.specs = asked[:1]  # the sample has every seed, so another method's missing run would not decide it
    assert "above 2" in render("one.above(2)", "", {**NAMES, "runs": runs}).text
    runs.specs, runs.missing = asked, []
    assert "above 2" in render("one.above(2)", "", {**NAMES, "runs": runs}).text


def test_an_open_finding_of_no_runs_at_all_names_the_command():
    none = {"none": Sample({}), "profile": "quick"}
    assert "`make train PROFILE=quick`" in render("none.above(2)", "", none).text
    assert "do not decide it" in render("None", "", none).text


def test_a_finding_of_what_the_first_cell_does_not_ask_for_is_open():
    found = render('gain["dfa"].below(0); gain["ep"].above(2)', BODY, NAMES)
    assert found.state == "open" and "'ep'" in found.text
    assert render('any(gain[m].above(2) for m in ["ep"])', BODY, NAMES).state == "open"


# ---- predicates --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("'a;b' == 'a;b'", ["'a;b' == 'a;b'"]),
        ("""';' != "\\";" ; depth == 12;""", ["""';' != "\\";\"""", "depth == 12"]),
        ('{"ä;": True}["ä;"];True', ['{"ä;": True}["ä;"]', "True"]),
        ("True # not; this", ["True"]),
    ],
)
def test_semicolons_inside_strings_separate_nothing(line, expected):
    found = render(line, "", NAMES)
    assert list(found.predicates) == expected and found.state == "holds"


def test_numpy_truth_is_truth():
    found = render("x > 0", "", {"x": np.float64(1)})
    assert found.predicates["x > 0"] is True


@pytest.mark.parametrize("line", ["depth", "gain", "'True'", "one.mean"])
def test_anything_else_is_an_error_that_names_the_predicate(line):
    with pytest.raises(TypeError, match=line):
        render(line, "", NAMES)


@pytest.mark.parametrize("line", ["", "  ", "x = 1", "one.above(", "import os"])
def test_what_is_no_predicate_is_an_error(line):
    with pytest.raises(ValueError):
        render(line, "", NAMES)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("not unknown", None),
        ("not yes", False),
        ("unknown and yes", None),
        ("unknown and no", False),
        ("unknown or no", None),
        ("unknown or yes", True),
        ("not (unknown or no)", None),
        ("all([yes, unknown])", None),
        ("all(x for x in [unknown, no])", False),
        ("any([unknown, no])", None),
        ("any([unknown, yes])", True),
        ("all([])", True),
        ("any([])", False),
    ],
)
def test_an_open_part_is_not_a_false_one(line, expected):
    assert list(render(line, "", {"yes": True, "no": False, "unknown": None}).predicates.values()) == [expected]


def test_the_namespace_is_only_read():
    names = dict(NAMES)
    render("any(depth == d for d in [12])", "{{ depth }}", names)
    assert names == NAMES


# ---- slots -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slot", ["detph", "gain.bq", "gain.bp.maen"])
def test_a_misspelt_slot_is_an_error_that_names_it(slot):
    with pytest.raises(UndefinedError, match=slot.split(".")[-1]):
        render("True", f"{{{{ {slot} }}}}", NAMES)


def test_slots_write_markdown_as_it_is():
    assert render("True", "{{ a }} < {{ f(2) }}", {"a": "<b> & *c*", "f": lambda x: x + 1}).text == "<b> & *c* < 3"


# ---- the magic ---------------------------------------------------------------------------------------------


@pytest.fixture
def shell(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # the shell puts its own there
    config = Config()
    config.HistoryManager.enabled = False
    running = InteractiveShell.instance(config=config)
    yield running
    InteractiveShell.clear_instance()


def test_the_magic_shows_the_finding_with_its_metadata(shell):
    finding.register()
    shell.user_ns.update(NAMES)
    with capture_output() as captured:
        shell.run_cell("%%finding gain['bp'].above(2); depth in {depth}\n" + BODY).raise_error()
    (shown,) = captured.outputs
    assert shown.data["text/markdown"] == shown.data["text/plain"]
    assert str(UP) in shown.data["text/markdown"]
    assert shown.metadata["text/markdown"]["finding"] == {
        "state": "holds",
        "predicates": {"gain['bp'].above(2)": True, "depth in {depth}": True},
    }


def test_an_error_in_the_magic_stops_the_notebook(shell):
    shell.run_cell("from creditaudit.show import finding; finding.register()").raise_error()
    shell.user_ns.update(NAMES)
    with capture_output() as captured:
        result = shell.run_cell("%%finding depth == 12\n{{ detph }}")
    assert isinstance(result.error_in_exec, UndefinedError) and not captured.outputs


def test_outside_a_shell_there_is_nothing_to_register():
    assert not InteractiveShell.initialized()
    finding.register()
