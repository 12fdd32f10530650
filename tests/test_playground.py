"""Tweak and see: live curves, lights, overlay, stop, a set of one's own; the tutorials run top to bottom."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from creditaudit import paths
from creditaudit.engine.spec import RunSpec
from creditaudit.lab import playground, server
from creditaudit.lab.panel import Panel
from creditaudit.mistakes import Mistake
from creditaudit.runs import cost, live
from creditaudit.runs.records import Store
from creditaudit.show import curves
from creditaudit.study import params, sections, setfile
from tests.factories import as_record

TINY = {"width": 16, "depth": 2, "data": "tiny", "train_size": 260}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A copy of the project without records."""
    for name in ("params", "notebooks"):
        shutil.copytree(paths.ROOT / name, tmp_path / name)
        monkeypatch.setattr(paths, name.upper(), tmp_path / name)
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path / "outputs")
    monkeypatch.setattr(cost, "cores", lambda: 1)  # a second process would only load torch once more,
    monkeypatch.setattr(live, "warm", lambda count: None)  # and so would one that waits for a next click
    return tmp_path


def test_one_line_trains_two_settings_with_their_frozen_twins(project):
    seen = playground.play(method="dfa", penalty=0.003, epochs=2, beside="bp", **TINY)
    assert seen.frame.groupby("setting").epoch.max().to_dict() == {"DFA λ=0.003": 2, "BP": 2}
    assert len(Store(project / "outputs" / "interactive").all()) == 4  # with the twins
    assert all(passed is not None for curve in seen.curves for passed in curve.diagnoses.values())
    again = playground.play(method="dfa", penalty=0.003, epochs=2, frozen=False, **TINY)
    assert not again.crew.progress and again.frame.epoch.max() == 2  # it has a record


def test_beside_is_a_rule_as_it_is_or_what_differs():
    spec = RunSpec(method="dfa", penalty=0.003, normalise="none", seed=7)
    assert playground._beside(spec, "bp") == RunSpec(method="bp", seed=7)
    assert playground._beside(spec, {"penalty": 0.0}) == spec.but(penalty=0.0)


def test_settings_that_differ_have_names_that_do():
    base = RunSpec(method="dfa")
    assert playground._names([base, base.but(penalty=0.1)]) == ["DFA", "DFA λ=0.1"]
    for change in ({"seed": 1}, {"width": 64}, {"normalise": "none"}, {"epochs": 3}, {"k": 1}):
        assert len(set(playground._names([base, base.but(**change)]))) == 2


def test_the_lights_are_the_rules_of_the_study():
    good = curves.Curve(as_record(epochs=3).spec, "it", as_record(epochs=3, accuracy=0.5).epochs, [0.3] * 3)
    assert good.diagnoses == {"D1": True, "D2": True, "D3": True} and good.gain == pytest.approx(0.2)
    bad = as_record(epochs=3, growth=60.0, g_last=1e-9, h_last=1e9)
    bad = curves.Curve(bad.spec, "it", bad.epochs, [0.3, 0.3])  # the twin is not that far yet
    assert bad.diagnoses == {"D1": False, "D2": False, "D3": None}
    assert curves.Curve(good.spec, "it", {}).diagnoses == {"D1": None, "D2": None, "D3": None}


def test_d2_speaks_of_batches_of_128_whatever_the_trajectory_was_averaged_over():
    one = as_record(epochs=1)
    shown = curves.Curve(one.spec, "it", {"g_norm": [[1.0]]})
    assert shown.last("g_norm") == 1024 / 128
    few = curves.Curve(one.spec.but(data="tiny"), "it", {"g_norm": [[1.0]]})
    assert few.last("g_norm") == 260 / 128


@pytest.mark.parametrize("epochs", [{}, {"test_accuracy": [None], "h_norm": [[1.0, None]], "g_norm": [[0.0, None]]}])
def test_a_run_that_has_not_begun_or_has_diverged_is_drawn(epochs):
    shown = [curves.Curve(RunSpec(method="dfa", depth=1), "it", epochs)]
    assert curves.picture(shown).startswith(b"\x89PNG") and "| it |" in curves.lights(shown, ["training"])


def test_the_nearest_record_is_of_the_same_rule_and_most_alike(project):
    store = Store(project / "outputs" / "paper")
    for fields in ({"penalty": 0.01}, {"penalty": 0.001}, {"width": 512}, {"k": 0}, {"method": "bp"}):
        store.save(as_record(**{"method": "dfa", "epochs": 3} | fields))
    assert playground.nearest(RunSpec(method="dfa", penalty=0.008, epochs=9)).spec.penalty == 0.01
    assert playground.nearest(RunSpec(method="dfa", width=600, epochs=9)).spec.width == 512
    assert playground.nearest(RunSpec(method="dfa", k=0, epochs=9)).spec.k == 0
    assert (
        playground.nearest(RunSpec(method="sb")) is None
        and playground.nearest(RunSpec(method="bp", data="tiny")) is None
    )


def until(true, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    assert true()


def test_the_panel_trains_overlays_stops_and_saves(project):
    panel = Panel("tiny", method="fa", epochs=3, width=64, depth=2)
    assert panel.fields["k"].value == panel.fields["k"].max == 2  # k follows the depth
    panel.train.click()
    panel.thread.join(600)
    assert panel.session.frame.setting.unique().tolist() == ["FA"] and panel.halt.disabled
    panel.fields["method"].value, panel.fields["penalty"].value, panel.fields["epochs"].value = "dfa", 0.01, 900
    panel.overlay.click()
    until(lambda: len(panel.session.frame.setting.unique()) == 2)
    panel.halt.click()
    kept = panel.session.frame.groupby("setting").epoch.max()
    assert kept["FA"] == 3 and 0 < kept["DFA λ=0.01"] < 900 and not panel.session.crew.workers
    panel.session.settings = panel.session.settings[:1]
    panel.section.value, panel.name.value = "depth_ladder", "mine"
    panel.keep.click()
    assert params.parameters("depth_ladder", "mine", "paper")["methods"] == ["fa"]
    panel.keep.click()
    assert "already" in panel.saved.value


def test_a_control_that_is_not_there_is_named():
    with pytest.raises(Mistake, match="no control 'lamda'"):
        Panel(lamda=3)


@pytest.mark.parametrize(("name", "value"), [("penalty", 0.002), ("method", "dfaa"), ("epochs", "x"), ("k", 5)])
def test_a_value_that_a_control_does_not_take_is_told(name, value):
    with pytest.raises(Mistake, match=f"{name} = {value!r}: the control takes"):
        Panel(**{name: value})


def test_every_control_shows_what_it_is_set_to(project):
    panel = Panel("tiny", normalise=None)
    assert all(control.index is not None for control in panel.fields.values() if hasattr(control, "index"))
    assert panel.spec == RunSpec(method="dfa", data="tiny", epochs=5)


OWN_RUNS = {"choices", "more_seeds", "networks"}  # they ask for runs of other kinds; a set says what is left out


@pytest.mark.parametrize("section", sections.training())
def test_a_saved_set_asks_for_the_runs_that_were_tried(project, section):
    tried = RunSpec(method="fa", width=128, depth=3, epochs=7, seed=5)
    path, left = setfile.write(section, "mine", [tried])
    asked = sections.runs_of(section, params.parameters(section, "mine", "paper"))
    assert path == project / "params" / section / "mine.yaml"
    assert (tried in asked) is (left == []) is (section not in OWN_RUNS)


def test_a_penalty_and_two_rules_make_a_set_and_what_it_cannot_say_is_told(project):
    spec = RunSpec(method="dfa", penalty=0.003, epochs=5, seed=1)
    setfile.write("penalty_rescue", "mine", [spec, spec.but(method="bp")])
    asked = sections.runs_of("penalty_rescue", params.parameters("penalty_rescue", "mine", "paper"))
    assert {spec, spec.but(method="bp")} <= set(asked)
    assert setfile.write("audit", "mine", [spec])[1] == ["penalty"]


@pytest.mark.parametrize(
    ("section", "name", "change", "said"),
    [
        ("audit", "a b", {}, "letters, digits"),
        ("audit", "../x", {}, "letters, digits"),
        ("audit", "d256_L4", {}, "there already"),
        ("overview", "mine", {}, "trains nothing"),
        ("audit", "mine", {"width": 64}, "width: a set has one"),
    ],
)
def test_what_cannot_be_a_set_is_refused_in_a_sentence(project, section, name, change, said):
    spec = RunSpec(method="dfa")
    with pytest.raises(Mistake, match=said):
        setfile.write(section, name, [spec, spec.but(**change)])


def test_lab_opens_copies_and_keeps_what_was_played_with(project):
    assert server.prepare() == project / "outputs" / "interactive" / "notebooks" / "start.ipynb"
    copy = server.folder() / "audit.ipynb"
    assert copy.read_text() == (paths.NOTEBOOKS / "audit.ipynb").read_text()
    copy.write_text("played with")
    server.prepare()
    assert copy.read_text() == "played with"
    assert "--ServerApp.ip=127.0.0.1" in server.command(copy) and not any(
        "token" in part for part in server.command(copy)
    )


def test_lab_opens_a_section_with_a_set_and_a_profile_in_its_first_cell(project):
    cell = "".join(json.loads(server.prepare("depth_ladder", "d512_L2", "quick").read_text())["cells"][0]["source"])
    names: dict = {}
    exec(cell, names)
    asked = params.parameters("depth_ladder", "d512_L2", "quick")
    assert {name: names[name] for name in asked} == asked and "# the study's" in cell
    assert server.prepare("capacity").stem == "capacity--d256--paper"


@pytest.mark.parametrize(
    ("asked", "said"),
    [(("audit", "d256"), "did you mean"), ((None, "d256_L4"), "SECTION="), (("audti", None), "audit")],
)
def test_lab_names_what_is_misspelt(project, asked, said):
    with pytest.raises(params.ParameterError, match=said):
        server.prepare(*asked)


def test_first_cells_keep_types_and_comments():
    source = 'a: list[int] = [1,\n  2]  # why é\nb: str = "é"  # too\n'
    assert server.assigned(source, {"a": [3], "b": "x"}) == "a: list[int] = [3]  # why é\nb: str = 'x'  # too\n"


def test_every_page_that_the_start_page_leads_to_is_there():
    cells = json.loads((paths.NOTEBOOKS / server.START).read_text())["cells"]
    text = "".join("".join(cell["source"]) for cell in cells)
    assert all(
        f"({path.name})" in text for path in paths.NOTEBOOKS.glob("*.ipynb") if path.stem not in ("start", "register")
    )


ONE = "\nfrom creditaudit.runs import cost\ncost.cores = lambda: 1"  # as in `project`


def executed(name: str, folder: Path, changes: dict[str, str]) -> nbformat.NotebookNode:
    """A tutorial in a kernel, as a person runs it, at the size of a test."""
    book = nbformat.read(paths.ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    for cell in book.cells:
        for old, new in changes.items():
            cell.source = cell.source.replace(old, new)
    for part in ("params", "notebooks"):
        (folder / part).symlink_to(paths.ROOT / part)
    search = os.pathsep.join([str(Path(paths.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {k: v for k, v in os.environ.items() if k != paths.RUNNER}
    environment |= {"PYTHONPATH": search, "CREDITAUDIT_ROOT": str(folder)}
    client = NotebookClient(book, timeout=300, kernel_name="python3", extra_arguments=["--log-level=CRITICAL"])
    client.execute(cwd=str(folder), env=environment)
    return book


def outputs(book: nbformat.NotebookNode) -> list[dict]:
    return [output.data for cell in book.cells for output in cell.get("outputs", []) if "data" in output]


def test_the_playground_page_runs_and_its_last_picture_stays(tmp_path):
    size = ', data="tiny", width=16, depth=2)'
    tiny = {'epochs=5, beside="bp")': f'epochs=2, beside="bp"{size}', "import panel, play": f"import panel, play{ONE}"}
    shown = outputs(executed("playground", tmp_path, tiny))
    assert any("image/png" in data for data in shown)
    assert any("| DFA λ=0.003 | 2/2 |" in data.get("text/markdown", "") for data in shown)


def test_the_tutorial_on_rules_runs_top_to_bottom(tmp_path):
    tiny = {'"width": 256, "depth": 4, "epochs": 3': '"width": 16, "depth": 2, "epochs": 1', '"cifar10"': '"tiny"'}
    tiny |= {"show.start()": f"show.start(){ONE}"}
    texts = [data.get("text/markdown", "") for data in outputs(executed("your_own_rule", tmp_path, tiny))]
    (beside,) = [text for text in texts if "| State Bridge |" in text]
    assert "| DRTP |" in beside and "| sign-symmetric |" in beside


def test_importing_the_playground_needs_no_torch():
    code = "import sys, creditaudit.lab.playground; print('torch' in sys.modules)"
    search = os.pathsep.join([str(Path(paths.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": search}, capture_output=True)
    assert done.stdout == b"False\n", done.stderr
