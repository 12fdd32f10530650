"""The checker must be believed when it contradicts: the claims as data, and verdicts by construction."""

import hashlib
import json
import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import jsonschema
import nbformat
import numpy as np
import pytest
import yaml

from creditaudit import paths, pipeline
from creditaudit.bind import pages
from creditaudit.engine.settings import RECIPE
from creditaudit.engine.spec import VARIANTS, RunSpec
from creditaudit.runs import files, records
from creditaudit.runs.records import Store
from creditaudit.study import claims, frames, report
from creditaudit.study.claimspec import ClaimsError, Quantity, depth_of, load_claims, quantities, statements
from creditaudit.study.frames import Runs
from creditaudit.study.metrics import METRICS, read, verdict
from tests.factories import as_record, identity_row

SEEDS = (42, 123, 456)


# ---- claims.yaml -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def published():
    return load_claims()


def test_claims_yaml_is_complete(published):
    cells = [claim for claim in published if claim.where == "ladder table"]
    assert len(cells) == 24
    assert len(published) >= 60
    assert {claim.kind for claim in published} == {"exact", "equivalence", "effect", "shape"}
    assert all(claim.statement.endswith(".") for claim in published)


def test_margins_follow_the_rule(published):
    for claim in published:
        if claim.kind == "equivalence" and claim.quantity.metric == "test_accuracy" and claim.std is not None:
            assert claim.margin == pytest.approx(max(0.02, 3 * claim.std)), claim.id
        if claim.kind == "equivalence" and claim.quantity.log:
            assert 0.5 <= claim.margin <= 1.0, claim.id


def test_the_published_ladder_satisfies_its_own_readings(published):
    """Effects and shapes drawn from the table hold for its means: a slip in either would show here."""
    table = [claim for claim in published if claim.where == "ladder table"]
    cells = {(claim.set, claim.quantity.method, claim.quantity.k): claim.expected for claim in table}
    for claim in published:
        if claim.where != "ladder text":
            continue
        for line in statements(claim):
            sides = [(side.method, depth_of(side.k, claim.setting)) for side in (line.quantity, line.minus)]
            difference = cells[claim.set, *sides[0]] - cells[claim.set, *sides[1]]
            holds = difference > line.threshold if line.direction == "above" else difference < line.threshold
            assert holds, claim.id


def test_every_set_has_its_parameters(published):
    for claim in published:
        assert (paths.PARAMS / claim.section / f"{claim.set}.yaml").exists(), claim.place


def test_every_metric_is_used(published):
    asked = [*published, *load_claims(claims.PREDICTIONS)]
    used = {quantity.metric for claim in asked for quantity in quantities(claim)}
    pages = "".join(path.read_text() for path in paths.NOTEBOOKS.glob("*.ipynb"))
    assert [name for name in METRICS if name not in used and not re.search(rf"\b{name}\b", pages)] == []


HEAD = {
    "alpha": 0.05,
    "noise": {"bp": 0.01, "dfa": 0.015},
    "sets": {
        "depth_ladder/d256_L4": {"width": 256, "depth": 4, "epochs": 100},
        "identity_check/d256_L4": {"width": 256, "depth": 4, "epochs": 0},
    },
}
CELL = {
    "id": "cell", "statement": "DFA reaches 30 %.", "where": "here", "kind": "equivalence", "margin": 0.02,
    "quantity": {"metric": "test_accuracy", "method": "dfa"}, "expected": 0.301, "std": 0.006,
}  # fmt: skip
GAIN = {
    "id": "gain", "statement": "BP gains.", "where": "here", "kind": "effect", "direction": "above",
    "margin": 0.02, "quantity": {"metric": "test_accuracy", "method": "bp"}, "expected": 0.23,
    "minus": {"metric": "test_accuracy", "method": "bp", "k": 0},
}  # fmt: skip
RISING = {
    "id": "rising", "statement": "BP rises.", "where": "here", "kind": "shape", "form": "rising",
    "quantity": {"metric": "test_accuracy", "method": "bp"}, "over": {"k": [0, 2, "L"]}, "expected": "rising",
    "any_epochs": True,
}  # fmt: skip
ROW = {
    "id": "row", "statement": "A row.", "where": "here", "kind": "exact", "margin": 1.0e-4, "n": 1,
    "quantity": {"metric": "identity_row", "seed": 42}, "expected": [0.1, 0.1, 0.1, 0.1, 0.2, 0.98],
}  # fmt: skip


def loaded(tmp_path: Path, *entries: dict, place: str = "depth_ladder/d256_L4") -> list[claims.Claim]:
    path = tmp_path / "claims.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(HEAD | {"claims": {place: list(entries)}}))
    return load_claims(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"margn": 0.02}, "cell.*'margn'.*did you mean 'margin'"),
        ({"quantity": {"metric": "test_acuracy", "method": "dfa"}}, "cell.*did you mean 'test_accuracy'"),
        ({"quantity": {"metric": "test_accuracy", "metod": "dfa"}}, "cell.*did you mean 'method'"),
        ({"quantity": {"metric": "test_accuracy", "method": "dfaa"}}, "cell.*method"),
        ({"margin": "2e-2"}, "cell.*margin.*1.0e-3"),
        ({"expected": "3e-1"}, "cell.*string.*1.0e-3"),
        ({"quantity": {"metric": "h_norm", "method": "dfa"}}, "needs a layer"),
        ({"quantity": {"metric": "h_norm", "method": "dfa", "layer": 5}}, r"layer 5 is outside 0\.\.4"),
        ({"quantity": {"metric": "gamma_at", "method": "dfa", "layer": 4}}, r"layer 4 is outside 0\.\.3"),
        ({"quantity": {"metric": "test_accuracy", "method": "dfa", "k": 5}}, r"k = 5 is outside 0\.\.4"),
        ({"quantity": CELL["quantity"] | {"settings": {"sweeps": 9}}}, "cell.*dfa has no 'sweeps'"),
        ({"quantity": CELL["quantity"] | {"method": "ep", "settings": {"sweeps": 10**9}}}, "cell.*sweeps = 1000000000"),
        ({"any_epochs": True}, "only a shape"),
        ({"kind": "exact", "std": None}, "without training"),
        ({"kind": "effect", "std": None}, "needs 'direction'"),
    ],
)
def test_a_wrong_claim_is_refused_by_name(tmp_path, change, message):
    with pytest.raises(ClaimsError, match=message):
        loaded(tmp_path, CELL | change)


def test_wrong_files_are_refused(tmp_path):
    with pytest.raises(ClaimsError, match="used twice"):
        loaded(tmp_path, CELL, deepcopy(CELL))
    with pytest.raises(ClaimsError, match="did you mean 'depth_ladder/d256_L4'"):
        loaded(tmp_path, CELL, place="depth_ladder/d265_L4")


# ---- from records to verdicts ------------------------------------------------------------------------------


def judge(tmp_path: Path, entry: dict, runs: list[dict], profile: str = "paper") -> claims.Result:
    store = Store(tmp_path / profile)
    for fields in runs:
        store.save(as_record(**fields))
    place = "identity_check/d256_L4" if entry["kind"] == "exact" else "depth_ladder/d256_L4"
    with pytest.MonkeyPatch.context() as elsewhere:
        elsewhere.setattr(paths, "OUTPUTS", tmp_path)
        (result,) = claims.check(loaded(tmp_path, entry, place=place), frames.comparable(profile))
    return result


def seeded(accuracies: list[float], **fields) -> list[dict]:
    return [dict(accuracy=a, seed=seed, **fields) for a, seed in zip(accuracies, SEEDS, strict=False)]


def ladder(*rungs: list[float], **fields) -> list[dict]:
    runs = [seeded(rung, method="bp", k=k, **fields) for k, rung in zip((0, 2, 4), rungs, strict=True)]
    return [run for rung in runs for run in rung]


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([0.300, 0.303, 0.305], "reproduced"),
        ([0.400, 0.403, 0.405], "contradicted"),
        ([0.28, 0.30, 0.32], "inconclusive"),
    ],
)
def test_equivalence_verdicts(tmp_path, accuracies, expected):
    result = judge(tmp_path, CELL, seeded(accuracies))
    assert result.verdict == expected
    assert result.observed == pytest.approx(np.mean(accuracies))
    assert ("seeds would decide" in result.reason) == (expected == "inconclusive")


@pytest.mark.parametrize(("top", "expected"), [(0.62, "reproduced"), (0.50, "contradicted"), (0.601, "inconclusive")])
def test_effect_verdicts(tmp_path, top, expected):
    runs = seeded([0.390, 0.388, 0.392], method="bp", k=0)
    runs += seeded([top, top + 0.003, top - 0.003], method="bp")
    assert judge(tmp_path, GAIN, runs).verdict == expected


@pytest.mark.parametrize(
    ("rungs", "expected"),
    [
        (([0.38, 0.39, 0.385], [0.56, 0.57, 0.565], [0.60, 0.61, 0.605]), "reproduced"),
        (([0.38, 0.39, 0.385], [0.60, 0.61, 0.605], [0.56, 0.57, 0.565]), "contradicted"),
        (([0.38, 0.39, 0.385], [0.60, 0.61, 0.605], [0.62, 0.60, 0.610]), "inconclusive"),
    ],
)
def test_shape_verdicts(tmp_path, rungs, expected):
    result = judge(tmp_path, RISING, ladder(*rungs))
    assert (result.verdict, result.n) == (expected, 3)
    assert result.observed == pytest.approx([np.mean(rung) for rung in rungs])


def test_exact_verdicts(tmp_path):
    (tmp_path / "paper").mkdir()
    path = tmp_path / "paper" / "identity.json"

    def write(row: dict, recipe: int = RECIPE) -> None:
        files.write_checked(path, {"recipe": recipe, "shapes": {"d256_L4": {"42": row}}})

    row = identity_row()
    assert judge(tmp_path, ROW, []).verdict == "inconclusive"
    write(row)
    assert judge(tmp_path, ROW, []).verdict == "reproduced"
    write(row, recipe=RECIPE - 1)
    assert judge(tmp_path, ROW, []).verdict == "inconclusive"
    write(row | {"deviation": 0.2003})
    assert judge(tmp_path, ROW, []).verdict == "contradicted"
    path.write_text(path.read_text().replace("0.2003", "0.2"))
    with pytest.raises(records.RecordError, match="checksum"):
        judge(tmp_path, ROW, [])


def test_norms_are_compared_in_decades(tmp_path):
    norm = CELL | {"expected": 4.0e8, "std": None, "margin": 0.5}
    norm["quantity"] = {"metric": "h_norm", "method": "dfa", "layer": "L"}
    runs = [dict(seed=seed, h_last=h) for seed, h in zip(SEEDS, (6e8, 7e8, 8e8), strict=True)]
    result = judge(tmp_path, norm, runs)
    assert result.verdict == "reproduced"
    assert result.observed == pytest.approx(6.95e8, rel=0.01)


def test_short_profiles_decide_only_what_they_can(tmp_path):
    quick = ladder([0.37], [0.45], [0.50], epochs=4)
    assert judge(tmp_path, RISING, quick, "quick").verdict == "reproduced"
    assert "4 epochs" in judge(tmp_path, RISING, quick, "quick").reason
    for entry in (CELL, GAIN, RISING | {"any_epochs": False}):
        result = judge(tmp_path, entry, [*quick, dict(epochs=4)], "quick")
        assert result.verdict == "inconclusive"
        assert "needs profile paper" in result.reason


def test_one_seed_close_to_the_noise_is_inconclusive(tmp_path):
    result = judge(tmp_path, RISING, ladder([0.37], [0.45], [0.46], epochs=4), "quick")
    assert result.verdict == "inconclusive"
    assert "published spread as noise" in result.reason


def test_one_seed_without_a_published_spread_is_inconclusive(tmp_path):
    line = {"quantity": {"metric": "growth", "method": "dfa"}, "direction": "above", "threshold": 50.0}
    fails = {name: RISING[name] for name in ("id", "statement", "where", "kind")}
    fails |= {"form": "all", "all": [line], "expected": "FAIL"}
    result = judge(tmp_path, fails, [dict(growth=2000.0)])
    assert "one seed has no spread" in result.reason


def test_undefined_numbers_and_foreign_runs_are_not_evidence(tmp_path):
    runs = [dict(seed=seed, final={"growth": None}) for seed in SEEDS]
    growth = CELL | {"quantity": {"metric": "growth", "method": "dfa"}}
    assert "undefined" in judge(tmp_path / "a", growth, runs).reason
    other = [run | {"lr": 0.01} for run in seeded([0.3, 0.3, 0.3])]
    assert "runs missing: 0 of 3" in judge(tmp_path / "b", CELL, other).reason


def test_the_study_reproduces_itself_except_where_its_text_contradicts_its_table(tmp_path, published):
    """Records with exactly the published means and std of the ladder, end to end."""
    store = Store(tmp_path / "paper")
    ladders = [claim for claim in published if claim.section == "depth_ladder"]
    for cell in (claim for claim in ladders if claim.where == "ladder table"):
        shape = {"width": cell.setting.width, "depth": cell.setting.depth, "k": cell.quantity.k}
        accuracies = cell.expected + cell.std * np.array([-1.0, 0.0, 1.0])
        for run in seeded(accuracies.tolist(), method=cell.quantity.method, **shape):
            store.save(as_record(**run))
    found = {result.id: result for result in claims.check(ladders, frames.comparable("paper", store.all()))}
    contradicted = [name for name, result in found.items() if result.verdict == "contradicted"]
    assert contradicted == ["ladder.d256_L4.cross.frozen_bp"]
    assert sum(result.verdict == "reproduced" for result in found.values()) >= 35
    assert all(result.verdict != "inconclusive" or "seeds" in result.reason for result in found.values())


def test_further_seeds_are_judged_beside_the_studys_and_do_not_move_its_verdict(tmp_path):
    three = seeded([0.300, 0.303, 0.305])
    more = [dict(accuracy=0.40 + 0.001 * seed, seed=seed) for seed in range(1, 8)]
    alone = judge(tmp_path / "a", CELL, three)
    beside = judge(tmp_path / "b", CELL, three + more)
    assert alone.all_seeds is None and "all_seeds" not in alone.to_json()
    assert (beside.verdict, beside.n, beside.ci) == (alone.verdict, 3, alone.ci)
    assert (beside.all_seeds.n, beside.all_seeds.verdict) == (10, "contradicted")
    assert beside.to_json()["all_seeds"]["n"] == 10


def test_a_notebook_with_other_epochs_is_not_judged_by_the_committed_runs():
    specs = [RunSpec(method="bp", epochs=30, seed=seed) for seed in claims.STUDY_SEEDS]
    runs = Runs(specs, [as_record(method="bp", epochs=30, seed=spec.seed) for spec in specs], "paper")
    found = claims.judge("depth_ladder", "paper", "d256_L4", runs)
    assert found and {result.verdict for result in found} == {"inconclusive"} and {result.n for result in found} == {0}


# ---- reports -----------------------------------------------------------------------------------------------


SCHEMA = json.loads((paths.PAPER / "claims.schema.json").read_text())


def test_every_verdict_names_the_runs_behind_it():
    """The committed records: as many runs per claim as its seeds and quantities ask for, and they exist."""
    store, results = Store(paths.profile_dir("paper")), claims.judge_all("paper")
    keys = {record.spec.key for record in store.all()}
    entries = json.loads(json.dumps([result.to_json() for result in results]))
    jsonschema.validate(entries, SCHEMA)
    for result in results:
        if result.kind == "exact" or not result.n:
            assert not result.records
            continue
        assert set(result.records) <= keys and result.commits
        assert len(result.records) % result.n == 0
        assert {int(key.split("-s")[-1].split("-")[0]) for key in result.records} <= set(claims.STUDY_SEEDS)


@pytest.mark.parametrize(
    ("findings", "problem"),
    [
        ([], "`make notebooks PROFILE=paper`"),
        ([("holds", "It is so.\n\nExplains `row`, `cell`.")], None),
        ([("holds", "Explains `cell.more`, cell."), ("open", "*3 seeds do not decide it: `cell`.*")], "no finding"),
        ([("fails", "*These runs do not show it.*\n\n> Explains `cell`.")], "disagreements--default: *These runs"),
        ([("holds", "Explains `cell`."), ("fails", "> More.")], "disagreements--default: > More."),
    ],
)
def test_strict_wants_a_finding_that_holds_for_every_contradicted_claim(
    tmp_path, monkeypatch, capsys, findings, problem
):
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    result = judge(tmp_path, CELL, seeded([0.400, 0.403, 0.405]))
    assert result.verdict == "contradicted"
    page = pages.executed_path("disagreements", "default", "paper")
    page.parent.mkdir(parents=True)
    cells = [nbformat.v4.new_code_cell(outputs=[shown(state, text)]) for state, text in findings]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), page)
    assert pipeline.strictly("paper", [result]) == (problem is not None)
    assert (problem or "none of 1 findings fails") in capsys.readouterr().out
    assert pipeline.strictly("paper", [replace(result, verdict="inconclusive")]) == any(
        state == "fails" for state, _ in findings
    )


def shown(state: str, text: str) -> nbformat.NotebookNode:
    metadata = {"text/markdown": {"finding": {"state": state, "predicates": {}}}}
    return nbformat.v4.new_output("display_data", {"text/markdown": text}, metadata=metadata)


def test_every_contradicted_claim_is_explained_once(published):
    """By the pages' own words; whether they hold is what STRICT asks."""
    pages = [cell.source for path in paths.NOTEBOOKS.glob("*.ipynb") for cell in nbformat.read(path, 4).cells]
    named = [name for text in pages for line in text.splitlines() if line.startswith("Explains `")
             for name in re.findall("`([^`]+)`", line)]  # fmt: skip
    assert len(named) == len(set(named)) and set(named) <= {claim.id for claim in published}
    off = {result.id for result in claims.judge_all("paper") if result.verdict == "contradicted"}
    assert off and off <= set(named)


def test_no_records_means_no_verdicts_and_a_readable_table(tmp_path, monkeypatch, capsys, published):
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    pipeline.judge("quick")
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    entries = json.loads((tmp_path / "quick" / "claims.json").read_text())
    here = {entry["id"] for entry in entries if entry["cause"] != "another profile"}
    assert {claim.id for claim in published if f"{claim.id} " in printed} == here and 0 < len(here) < len(published)
    pipeline.judge("paper")
    printed = capsys.readouterr().out
    assert all(claim.id in printed for claim in published)
    first = (tmp_path / "quick" / "claims.json").read_bytes()
    pipeline.judge("quick")
    assert (tmp_path / "quick" / "claims.json").read_bytes() == first
    entries = json.loads(first)
    jsonschema.validate(entries, SCHEMA)
    assert {entry["verdict"] for entry in entries} == {"inconclusive"}
    by_id = {claim.id: claim for claim in published}
    assert all(entry["expected"] == by_id[entry["id"]].expected for entry in entries)
    assert all(entry["margin"] == by_id[entry["id"]].margin for entry in entries)


def test_summary_counts_and_warns_of_luck(tmp_path, capsys):
    result = judge(tmp_path, CELL, seeded([0.300, 0.303, 0.305]))
    bare = judge(tmp_path, CELL | {"std": None}, seeded([0.300, 0.303, 0.305]))
    found = report.summary([result] * 40)
    assert (found.total, found.reproduced, found.tested, found.bare) == (40, 40, 40, 0)
    report.print_table([*[result] * 39, bare])
    told = " ".join(capsys.readouterr().out.split())
    assert "40 of them had the runs for a test" in told and "about 2.0 wrong verdicts" in told
    assert "because 1 published means come without a std and are taken as exact" in told


def test_metrics_read_what_they_say():
    quiet = as_record(method="bp", epochs=3)
    loud = as_record(growth=2000.0, h_last=1e9, g_last=1e-9, epochs=3)
    assert (read("first_d1", quiet), read("first_d2", quiet)) == (4, 4)
    assert (read("first_d1", loud), read("first_d2", loud)) == (1, 1)
    assert read("h_norm", loud, 4) == 1e9
    assert read("g_norm_1024", loud, 2) == pytest.approx(1e-9 / 8)
    assert read("state_error_fall", as_record(method="sb", epochs=10)) == pytest.approx(10**-3.6)
    assert verdict(loud, frozen=as_record(k=0, accuracy=0.35)) == "FAIL(D1+D2+D3)"
    assert verdict(as_record(method="bp", accuracy=0.6), frozen=as_record(k=0, accuracy=0.35)) == "PASS"


# of the claims as committed (c1d2e7c) before the first 100-epoch run
REGISTERED = "a1bafb9c16a0b877db331be4d02d6351d91048af8cf525e0ad0036a23c87a21f"


def _as_registered(part):
    """Without the fields of a quantity that came later, where a claim leaves them unset: none of them may use one."""
    if isinstance(part, dict):
        fields = ("normalise", "depth", *VARIANTS) if "metric" in part else ()
        later = {name: Quantity.model_fields[name].default for name in fields}
        return {name: _as_registered(value) for name, value in part.items() if later.get(name, ...) != value}
    return [_as_registered(item) for item in part] if isinstance(part, list) else part


def test_what_is_tested_is_what_was_registered_before_the_first_run():
    """Wording may change; a quantity, an expected value or a margin may not, or a verdict means nothing."""
    words = {"statement", "where", "printed", "why", "seen"}
    tested = [_as_registered(claim.model_dump(exclude=words, mode="json")) for claim in load_claims()]
    assert hashlib.sha256(json.dumps(tested, sort_keys=True).encode()).hexdigest() == REGISTERED
