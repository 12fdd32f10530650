"""Why a claim is contradicted: prose that reads its numbers from the records, and is refused when it cannot."""

import pytest
import yaml

from creditaudit import paths
from creditaudit.claimspec import ClaimsError, load_claims
from creditaudit.evidence import Evidence
from creditaudit.explanations import load_explanations, unexplained
from creditaudit.records import Store
from tests.factories import as_record
from tests.test_claims import CELL, judge, seeded


@pytest.fixture(scope="module")
def published():
    return load_claims()


def explained(tmp_path, claim, **entry):
    (tmp_path / "why.yaml").write_text(yaml.safe_dump([{"claims": [claim.id], **entry}]))
    return load_explanations([claim], tmp_path / "why.yaml")


def test_strict_wants_an_explanation_with_existing_records(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    runs = seeded([0.400, 0.403, 0.405])
    result = judge(tmp_path, CELL, runs)
    evidence = Evidence(Store(tmp_path / "paper"), "paper")
    assert "no entry" in unexplained(["cell"], {}, evidence)[0]
    nobody = explained(tmp_path, result.claim, text="{a}", numbers={"a": {"metric": "test_accuracy", "method": "sb"}})
    assert "'a', of which no run exists" in unexplained(["cell"], nobody, evidence)[0]
    ours = {"a": {"metric": "test_accuracy", "method": "dfa"}}
    found = explained(tmp_path, result.claim, text="{a}", numbers=ours)
    assert unexplained(["cell"], found, evidence) == []


@pytest.mark.parametrize(
    ("holds", "off"),
    [
        ({"above": 0.40, "below": 0.41}, None),
        ({"above": 0.41}, "accuracy is 0.4, not above 0.41"),
        ({"below": "norm"}, None),
        ({"above": "norm"}, "accuracy is 0.4, not above norm (200)"),
        ({"above": "cell"}, None),
        ({"within": "cell"}, "accuracy is 0.4, not above 0.281 and below 0.321"),
        ({"below": "cell"}, "accuracy is 0.4, not below cell (0.3)"),
    ],
)
def test_an_explanation_whose_words_are_not_true_says_so_and_explains_nothing(tmp_path, holds, off):
    claim = judge(tmp_path, CELL, seeded([0.400, 0.403, 0.405])).claim
    numbers = {
        "accuracy": {"metric": "test_accuracy", "method": "dfa"},
        "norm": {"metric": "h_norm", "method": "dfa", "layer": "L"},
    }
    words = {"text": "{accuracy}, {norm}", "numbers": numbers, "holds": [{"number": "accuracy", **holds}]}
    why, evidence = explained(tmp_path, claim, **words), Evidence(Store(tmp_path / "paper"), "paper")
    assert (f"do not bear this out: {off}." in why["cell"].told(evidence)) == (off is not None)
    assert unexplained(["cell"], why, evidence) == (
        [f"cell is explained by words that are not true: {off}"] if off else []
    )
    nothing = Evidence(Store(tmp_path / "quick"), "quick")
    assert "accuracy is not known" in why["cell"].told(nothing)


def test_an_explanation_reads_its_numbers_and_its_evidence_from_the_records(tmp_path):
    runs = seeded([0.400, 0.403, 0.405])
    claim = judge(tmp_path, CELL, runs).claim
    numbers = {
        "ours": {"metric": "test_accuracy", "method": "dfa"},
        "norm": {"metric": "h_norm", "method": "dfa", "layer": "L"},
    }
    why = explained(tmp_path, claim, text="It is {ours} at {norm}.", numbers=numbers)["cell"]
    text = why.told(Evidence(Store(tmp_path / "paper"), "paper"))
    assert text.startswith("It is 0.403 ± 0.003 at 200 ×/÷") and " Evidence (n = 3 seeds for each number): `" in text
    for run in runs:
        kind, seed, digest = as_record(**run).spec.key.rsplit("-", 2)
        assert f"`{kind}`" in text and f"`{seed}-{digest}`" in text
    broken = as_record(seed=7, accuracy=0.4, final={"h_norm": [1.0] * 4 + [None]})
    Store(tmp_path / "broken").save(broken)
    assert "at (undefined)." in why.told(Evidence(Store(tmp_path / "broken"), "broken"))
    assert "(not run)" in why.told(Evidence(Store(tmp_path / "quick"), "quick"))
    half = numbers | {"norm": {"metric": "h_norm", "method": "sb", "layer": "L"}}
    uneven = explained(tmp_path, claim, text="It is {ours} at {norm}.", numbers=half)["cell"]
    assert "It is 0.403 ± 0.003 (n=3) at (not run). Evidence: `" in uneven.told(
        Evidence(Store(tmp_path / "paper"), "paper")
    )


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"claims": ["ladder.d256_L4.dfa.k44"]}, r"did you mean 'ladder\.d256_L4\.dfa\.k4'"),
        ({"claims": ["ladder.d256_L4.dfa.k4", "audit.d256_L4.h.dfa"]}, "number 'a': of which set"),
        ({"text": "{a} and {b}"}, "only one of them has b"),
        ({"text": "nothing"}, "only one of them has a"),
        ({"text": "so", "numbers": {}}, "at least 1 item"),
        ({"holds": [{"number": "b", "above": 1}]}, "speaks of b"),
        ({"holds": [{"number": "a"}]}, "above or below what"),
        ({"holds": [{"number": "a", "within": "ladder.d256_L4.dfa.k44"}]}, r"did you mean 'ladder\.d256_L4\.dfa\.k4'"),
        ({"holds": [{"number": "a", "above": "ladder.d256_L4.dfa.k44"}]}, r"did you mean 'ladder\.d256_L4\.dfa\.k4'"),
        ({"hold": []}, "why.yaml, entry 1: unknown field 'hold': did you mean 'holds'"),
        ({"holds": [{"number": "a", "xyz": 1}]}, "unknown field 'holds.0.xyz': known are above, below, number"),
        ({"text": "{a:.3f}"}, "without a format"),
        ({"numbers": {"a": {"metric": "h_norm", "method": "dfa", "layer": 7}}}, "layer 7 is outside"),
        ({"numbers": {"a": {"metric": "g_norms", "method": "dfa"}}}, "not one number per run"),
        ({"numbers": {"a": {"metric": "identity_cosine"}}}, "not one number per run"),
        ({"numbers": {"a": {"metric": "test_accuracy", "method": "dfa", "seed": 42}}}, "takes no seed"),
        ({"numbers": {"a": {"metric": "test_acuracy", "method": "dfa"}}}, "did you mean 'test_accuracy'"),
        ({"numbers": {"a": {"metric": "test_accuracy", "method": "dfa", "set": "audit/d25_L4"}}}, "audit/d256_L4"),
    ],
)
def test_a_wrong_explanation_is_refused_with_its_reason(tmp_path, published, entry, problem):
    good = {
        "claims": ["ladder.d256_L4.dfa.k4"],
        "text": "{a}",
        "numbers": {"a": {"metric": "test_accuracy", "method": "dfa"}},
    }
    (tmp_path / "why.yaml").write_text(yaml.safe_dump([good | entry]))
    with pytest.raises(ClaimsError, match=problem):
        load_explanations(published, tmp_path / "why.yaml")


def test_explanations_fit_the_claims_and_the_committed_records(tmp_path, published):
    evidence = Evidence(Store(paths.ROOT / "outputs" / "paper"), "paper")
    known = {
        name: why
        for name, why in load_explanations(published).items()
        if all(why._values(number, evidence) for number in why.entry.numbers)  # others wait for their runs
    }
    untrue = {name: why._untrue(evidence) for name, why in known.items()}
    assert untrue and not any(untrue.values()), untrue
    twice = {
        "claims": ["ladder.d256_L4.dfa.k4"] * 2,
        "text": "{a}",
        "numbers": {"a": {"metric": "test_accuracy", "method": "dfa"}},
    }
    (tmp_path / "why.yaml").write_text(yaml.safe_dump([twice]))
    with pytest.raises(ClaimsError, match="explained twice"):
        load_explanations(published, tmp_path / "why.yaml")
