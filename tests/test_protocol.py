"""Which runs a section asks for, and that every parameter set and profile can ask for them."""

import json
from typing import Any

import nbformat
import pandas as pd
import pytest
from IPython.core.interactiveshell import InteractiveShell

from creditaudit import __main__, paths, pipeline, show
from creditaudit.engine.spec import RunSpec
from creditaudit.measure import identity
from creditaudit.runs import cost, fetch, identity_rows, sweep
from creditaudit.runs.records import Store
from creditaudit.study import frames, origin, params, sections
from creditaudit.study.claims import STUDY_SEEDS, published
from tests.factories import as_record, identity_row

METHODS = ["bp", "fa", "dfa"]
PROFILES = ["smoke", "quick", "paper"]
PLACES = [(section, name) for section in params.sections() for name in params.sets(section)]


def specs(section: str, set_name: str, profile: str) -> list[RunSpec]:
    return sections.runs_of(section, params.parameters(section, set_name, profile))


def test_the_paper_ladder_is_the_72_runs_of_the_study():
    both = [spec for name in ("d256_L4", "d512_L2") for spec in specs("depth_ladder", name, "paper")]
    assert len(set(both)) == len(both) == 72
    assert {spec.epochs for spec in both} == {100} and {spec.seed for spec in both} == set(STUDY_SEEDS)


def test_the_top_and_bottom_rung_are_the_audits_own_runs():
    ends = {spec for spec in specs("depth_ladder", "d256_L4", "paper") if spec.k in (0, 4)}
    assert len(ends) == 18 and ends <= set(specs("audit", "d256_L4", "paper"))


def rungs(methods: list[str], seeds: list[int], depth: int) -> list[RunSpec]:
    return [RunSpec(method=m, k=k, seed=s, depth=depth) for s in seeds for k in range(depth + 1) for m in methods]


def test_penalty_rescue_has_its_controls():
    runs = set(specs("penalty_rescue", "d256_L4", "paper"))
    for seed in STUDY_SEEDS:
        same = {"seed": seed, "epochs": 30}
        for method in METHODS:
            assert RunSpec(method=method, k=0, **same) in runs
            assert {RunSpec(method=method, penalty=p, **same) for p in (0.0, 1e-2)} <= runs
        for method in ("dfa", "fa"):
            assert {RunSpec(method=method, penalty=p, **same) for p in (1e-4, 1e-3, 1e-1)} <= runs
        assert RunSpec(method="dfa", penalty=1e-2, seed=seed, epochs=100) in runs
    assert {spec.epochs for spec in runs} == {30, 100}


def test_sections_without_training_ask_for_no_runs():
    assert specs("identity_check", "d256_L4", "paper") == [] == sections.runs_of("overview", {"profile": "paper"})


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(("section", "set_name"), PLACES)
def test_every_set_is_valid_in_every_profile(section, set_name, profile):
    for spec in specs(section, set_name, profile):
        assert spec.data == ("tiny" if profile == "smoke" else "cifar10")


def test_quick_keeps_its_budget():
    runs = list(dict.fromkeys(spec for place in PLACES for spec in specs(*place, "quick")))
    assert {spec.seed for spec in runs} == {42}
    committed = Store(paths.profile_dir("paper")).all()  # they say how fast the engine really is
    minutes = sum(cost.cpu_seconds(spec, committed) for spec in runs) / 60
    assert minutes / 2 < 15  # on two cores, which leaves five of the twenty minutes for the notebooks


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    return tmp_path


def test_the_runner_only_names_what_is_missing(outputs, monkeypatch):
    monkeypatch.setenv("CREDITAUDIT_RUNNER", "1")
    wanted = rungs(["bp", "dfa"], [42, 123], 1)
    for spec in wanted[:5]:
        Store(outputs / "paper").save(as_record(method=spec.method, depth=1, k=spec.k, seed=spec.seed))
    runs = frames.load("depth_ladder", "paper", "d256_L4", wanted)
    assert len(runs.records) == 5 and runs.missing == wanted[5:]
    said = runs.coverage()
    assert "5 of 8 runs" in said and "make train PROFILE=paper SECTION=depth_ladder SET=d256_L4" in said
    assert "missing: 1 BP, 1 DFA, 1 DFA frozen at" in said
    assert "5 of 8 runs; seeds: 42, 123; " in runs.provenance_note()


def test_many_missing_runs_and_many_commits_are_counted():
    wanted = [spec for spec in rungs(["bp", "dfa"], [1, 2, 3], 2) if spec.k != 1]
    assert origin.kinds(wanted) == "3 BP, 3 BP frozen, 3 DFA, 3 DFA frozen at $d=256$, $L=2$"
    made = [as_record(method="bp", depth=2, k=2, seed=seed) for seed in range(3)]
    for number, record in enumerate(made):
        record.provenance.update(commit=str(number) * 40, dirty=number == 2)
    runs = frames.Runs([record.spec for record in made], made, "paper")
    assert "commits: 3, named in the records, 1 of them with local changes." in runs.provenance_note()


def test_in_jupyter_exactly_the_runs_without_a_record_are_trained(outputs, monkeypatch):
    """Of the same spec, hence of the epochs that the first cell asks for; committed records are used where they fit."""
    monkeypatch.delenv("CREDITAUDIT_RUNNER", raising=False)
    wanted, asked = rungs(["bp", "dfa"], [42], 1), []

    def train(specs: list[RunSpec]) -> None:
        asked.extend(specs)
        for spec in specs:
            Store(outputs / "interactive").save(as_record(method=spec.method, depth=1, k=spec.k, seed=spec.seed))

    Store(outputs / "paper").save(as_record(method="bp", depth=1, k=0, seed=42))
    Store(outputs / "interactive").save(as_record(method="bp", depth=1, k=1, seed=42))
    monkeypatch.setattr(frames, "trainer", train)
    runs = frames.load("depth_ladder", "quick", "d256_L4", wanted)
    assert asked == [spec for spec in wanted if spec.method == "dfa"]
    assert runs.profile == "quick" and not runs.missing and [record.spec for record in runs.records] == wanted
    assert runs.own == {spec for spec in wanted if (spec.method, spec.k) != ("bp", 0)}
    monkeypatch.setenv("CREDITAUDIT_RUNNER", "1")
    assert len(frames.load("depth_ladder", "quick", "d256_L4", wanted).missing) == 4


def test_a_slip_in_a_first_cell_is_named_and_a_name_of_ones_own_is_not():
    params.check_cell("depth_ladder", {}, "seeds = [7]\nlearning_rate = 0.1")
    with pytest.raises(params.ParameterError, match="no parameter 'epoch': did you mean 'epochs'"):
        params.check_cell("depth_ladder", {}, "epoch: int = 30")


def test_where_a_first_cell_departs_from_its_set_is_known():
    cell = params.defaults("depth_ladder")
    assert params.departures("depth_ladder", cell) == {}
    other = params.departures("depth_ladder", cell | {"set_name": "d512_L2", "epochs": 30})
    assert other == {"width": (256, 512), "depth": (4, 2), "epochs": (30, 100)}


@pytest.mark.parametrize(("width", "depth", "found"), [(512, 2, True), (256, 2, False), (512, 4, False)])
def test_published_numbers_are_those_of_the_runs_shape_or_none(width, depth, found):
    spec = RunSpec(method="dfa", width=width, depth=depth)
    rows = published("depth_ladder", "d512_L2", frames.Runs([spec], [], "paper"))
    assert rows.empty != found and rows["mean"].dtype == float


def test_a_person_at_play_overwrites_nothing_of_a_profile(outputs, monkeypatch):
    monkeypatch.delenv("CREDITAUDIT_RUNNER", raising=False)
    frame, committed = pd.DataFrame({"seed": [1]}), identity_rows.shape_key(8, 2, "tiny")
    saved = [show.csv(frame, frames.Runs([], [], "paper", "audit", "d256_L4"))]
    identity_rows.rows(8, 2, [1], "paper", data="tiny")
    monkeypatch.setenv("CREDITAUDIT_RUNNER", "1")
    assert saved[0].is_relative_to(outputs / "interactive") and not (outputs / "paper").exists()
    identity_rows.rows(8, 2, [2], "paper", data="tiny")
    assert set(identity_rows.read(outputs / "paper")[committed]) == {"2"}


def test_tidy_frames_by_run_epoch_and_layer():
    record = as_record(method="dfa", accuracy=0.3, depth=2, epochs=3, h_last=100.0)
    runs = frames.Runs([record.spec], [record], "paper")
    assert runs.frame.loc[0, ["method", "depth", "accuracy", "h_last"]].tolist() == ["dfa", 2, 0.3, 100.0]
    assert runs.by_epoch(accuracy="test_accuracy", g=("g_norm", "L")).epoch.tolist() == [1, 2, 3]
    layers = runs.by_layer(gamma="gamma_in", nudge=("nudge_in", "0.01"))
    assert layers.layer.tolist() == [0, 1] and layers.nudge.tolist() == [-0.027, -0.027]


NOTEBOOKS = [params.source_path(name) for name in params.sections()]  # tutorials define classes, which these may not


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_keep_the_house_style(path):
    cells = json.loads(path.read_text())["cells"]
    assert cells[0]["metadata"]["tags"] == ["parameters"]
    assert sum("provenance" in cell["metadata"].get("tags", []) for cell in cells) == 1
    titles = [line for cell in cells if cell["cell_type"] == "markdown" for line in cell["source"] if line[:2] == "# "]
    assert len(titles) == 1
    for cell in cells:
        lines = "".join(cell["source"]).splitlines()
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            assert len(lines) <= 18
            if "own" not in cell["metadata"].get("tags", []):  # a reader's own model or rule, in a tutorial
                assert not any(line.lstrip().startswith(("def ", "class ")) for line in lines)


def test_the_last_notebooks_are_made_again_when_a_section_asks_for_other_runs(monkeypatch):
    given = []
    monkeypatch.setattr(pipeline.notebooks, "execute", lambda *_, inputs: given.extend(inputs))
    pipeline.run_last("paper")
    asked = {paths.PARAMS / "profiles.yaml", paths.PARAMS / "audit" / "d256_L4.yaml", paths.NOTEBOOKS / "audit.ipynb"}
    assert asked <= set(given)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"profile": "papr"}, "no profile 'papr': did you mean 'paper'"),
        ({"set_name": "d256_L5"}, "audit has no set 'd256_L5': did you mean 'd256_L4'"),
        ({"specs": []}, "methods and seeds: at least one"),
    ],
)
def test_names_in_a_first_cell_are_checked(outputs, asked, message):
    given = {"specs": [RunSpec(method="bp")], "profile": "paper", "section": "audit", "set_name": "d256_L4"} | asked
    with pytest.raises(params.ParameterError, match=message):
        frames.load(**given)


@pytest.mark.parametrize(("profile", "fetched"), [("smoke", 0), ("quick", 1)])
def test_training_fetches_the_pictures_it_needs(outputs, monkeypatch, profile, fetched):
    calls = []
    monkeypatch.setattr(fetch, "cifar10", lambda: calls.append("fetched"))
    monkeypatch.setattr(sweep, "train_all", lambda *_: calls.append("trained") or 0)
    pipeline.train(profile, [("depth_ladder", "d512_L2")])
    assert calls == ["fetched"] * fetched + ["trained"]


def test_what_is_misspelt_in_another_section_is_refused_before_anything_is_trained(outputs, monkeypatch):
    right = params.parameters

    def wrong(*place):
        return right(*place) | ({"rescue": -1.0} if place[0] == "penalty_rescue" else {})

    monkeypatch.setattr(pipeline.params, "parameters", wrong)
    monkeypatch.setattr(sweep, "train_all", lambda *_: pytest.fail("trained"))
    with pytest.raises(params.ParameterError, match=r"penalty_rescue/d256_L4.yaml.*penalty = -1.0"):
        pipeline.train("smoke", [("depth_ladder", "d512_L2")])


def test_pictures_are_fetched_for_an_identity_check_until_it_is_measured(outputs, monkeypatch):
    calls, check = [], ("identity_check", "d256_L4")
    monkeypatch.setattr(fetch, "cifar10", lambda: calls.append("fetched"))
    pipeline.train("quick", [check])
    assert calls == ["fetched"]
    monkeypatch.setenv(paths.RUNNER, "1")
    monkeypatch.setattr(identity, "measure", lambda *_: identity_row())
    identity_rows.rows(256, 4, params.parameters(*check, "quick")["seeds"], "quick")
    pipeline.train("quick", [check])
    assert calls == ["fetched"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["claims"], 0), (["claims", "--strict"], 141), (["train", "--dry-run"], 0), (["train"], 141)],
)
def test_a_closed_pipe_is_the_end_of_a_list_but_not_of_a_campaign(monkeypatch, capfd, arguments, code):
    def closed(*_: Any) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("os.dup2", lambda *_: None)
    monkeypatch.setitem(__main__._VERBS, arguments[0], closed)
    assert __main__.main([*arguments, "--profile", "smoke"]) == code
    assert ("goes on" in capfd.readouterr().err) == (code != 0)


def test_a_first_cell_that_is_changed_later_is_checked_when_it_is_run(monkeypatch):
    said = []
    monkeypatch.setattr(show, "text", said.append)
    shell = InteractiveShell()
    for _ in range(2):  # once, however often `start` is run
        show._watch_first_cell(shell, "depth_ladder")
    cell = "".join(nbformat.read(paths.NOTEBOOKS / "depth_ladder.ipynb", as_version=4).cells[0].source)
    shell.run_cell("seeds = 7", store_history=True)  # no first cell
    shell.run_cell(cell, store_history=True)
    assert said == []
    shell.run_cell(cell.replace("[42, 123, 456]", "7"), store_history=True)
    shell.run_cell(cell.replace("epochs: int = 100", "epochs: int = 30"), store_history=True)
    assert len(said) == 2 and "seeds" in said[0] and "`epochs = 30` (there `100`)" in said[1]
