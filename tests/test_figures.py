"""Figures draw without a warning whatever is missing, and the sentences beside them follow the records."""

from dataclasses import replace
from typing import get_args

import matplotlib.pyplot as plt
import pytest

from creditaudit import (
    answers,
    claims,
    figures,
    findings,
    findings_identity,
    findings_ladder,
    identity_rows,
    overview,
    paths,
    protocol,
    setup_tables,
    style,
    tables,
)
from creditaudit.collect import Runs
from creditaudit.credit import RULES
from creditaudit.explanations import Entry, Explanation
from creditaudit.records import Store
from creditaudit.spec import Method
from tests.factories import as_record
from tests.test_tables import ladder

CASES = {
    "three seeds": ladder(),
    "one seed": ladder(seeds=(42,)),
    "rungs missing": ladder(skip={("dfa", 1, seed) for seed in (42, 123, 456)} | {("bp", 2, 42)}),
    "nothing": ladder(seeds=()),
}
LOST = Runs(CASES["three seeds"].specs, [], "paper", "depth_ladder", "d256_L4")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_ladder_draws(case, published):
    specs = protocol.depth_ladder(["bp", "fa", "dfa"], [42], epochs=100 if published else 1)
    study = tables.published_ladder(claims.load_claims(), "d256_L4", specs)
    ours = tables.summarise(CASES[case].frame(), ["method", "k"], "accuracy")
    fig = figures.ladder({"one": (ours, study), "two": (ours, study.iloc[:0])})
    fig.canvas.draw()
    texts = [text.get_text() for ax in fig.axes for text in ax.texts]
    assert ("n=2" in texts) == (case == "rungs missing")
    assert ("filled: ours, hollow: published" in texts) == published
    plt.close(fig)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seeds", [[1], [1, 2, 3]])
def test_identity_draws(seeds, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    tidy = identity_rows.frame(identity_rows.rows(8, 3, seeds, "smoke", data="tiny"))
    fig = figures.identity(tidy)
    fig.canvas.draw()
    plt.close(fig)
    assert f"n = {len(seeds)} seed" in findings_identity.reading(tidy)
    assert "nearly linear classifier, and every gain" in findings_identity.meaning(tidy)
    assert "not nearly the identity" in findings_identity.meaning(tidy.assign(cosine=0.7))


def test_every_method_has_its_own_look():
    """A rule, a name in the spec, a look and a line in the set-up: what adding a method takes."""
    assert set(get_args(Method)) == RULES.keys() <= style.LOOKS.keys()
    assert set(setup_tables.rules().method) == {style.name(method) for method in RULES}
    assert all(setup_tables.rules()["block $l$ is driven by"])
    with pytest.raises(KeyError, match=r"style\.LOOKS"):
        style.in_order(["bp", "mine"])
    looks = [style.look(method) for method in RULES]
    for aspect in ("name", "colour", "marker", "line"):
        assert len({str(getattr(look, aspect)) for look in looks}) == len(looks)


def test_labels_that_would_collide_are_moved_apart():
    moved = style._spread(style.np.array([0.0, 1.0, 2.0, 50.0]), 10.0)
    assert moved.tolist() == [-9.0, 1.0, 11.0, 50.0]


def test_the_ladder_says_what_the_records_say():
    text = findings_ladder.rungs(CASES["three seeds"])
    assert "**BP** goes from 0.310 frozen to 0.510 with all blocks trained, +20.0 ± 0.0 pp (n = 3)" in text
    assert "Its best rung is the frozen one" in text.splitlines()[1]
    assert findings_ladder.caption(CASES["three seeds"]).startswith(
        "**Accuracy is highest under BP with all blocks trained; under DFA with all blocks frozen.**"
    )
    assert "DFA" not in findings_ladder.caption(CASES["rungs missing"])
    assert "No method has all its rungs yet" in findings_ladder.caption(LOST)
    assert findings_ladder.rungs(LOST).count("not yet decided") == 2


def test_the_first_answer_follows_the_records():
    answer = answers.depth([CASES["three seeds"]])
    assert "**Training all blocks instead of none helps BP; does not help DFA.**" in answer
    assert "BP +20.0 ± 0.0 pp; DFA −10.0 ± 0.0 pp (mean" in answer
    gains = {"here": [4.0, 4.5, 5.0], "there": [0.5, -0.1, 4.6]}
    assert answers._worth("fa", gains) == (
        "helps FA at here and may or may not help it at there",
        "FA +4.5 ± 0.5 pp and +1.7 ± 2.6 pp (90 % interval −2.6 to +6.0)",
    )
    known = answers._worth("fa", {"here": None, "there": [4.0, 4.5, 5.0]})  # a number must not pass for another's
    assert known == ("helps FA at there", "FA +4.5 ± 0.5 pp at there")
    partial = answers.depth([CASES["rungs missing"]])
    assert "Preliminary: 4 of 18 runs at $d=256$, $L=2$ are missing (`make train PROFILE=paper" in partial
    assert "Not yet decided: 18 of 18 runs are missing" in answers.depth([LOST])


def penalty_runs(after: float, g_after: float = 1e-6) -> Runs:
    made = [
        as_record(method="dfa", accuracy=0.30, h_last=4e8, g_last=4e-9, growth=1900.0, epochs=30),
        as_record(method="dfa", accuracy=after, h_last=4e4, g_last=g_after, epochs=30, penalty=0.01),
        as_record(method="dfa", accuracy=0.35, k=0, epochs=30),
        as_record(method="bp", accuracy=0.58, epochs=30),
    ]
    return Runs([record.spec for record in made], made, "paper", "penalty_rescue", "d256_L4")


def test_what_the_penalty_fixes_depends_on_the_records():
    unused = answers.penalty(penalty_runs(0.36), 0.01)
    assert "repairs D1 (scale) and D2 (reference)" in unused
    assert "gain less than the 2 pp" in unused and "+1.0 pp against leaving" in unused
    assert "gain the 2 pp that D3 asks for" in answers.penalty(penalty_runs(0.40), 0.01)
    assert "D2 still fails" in answers.penalty(penalty_runs(0.36, g_after=1e-8), 0.01)
    assert "Of the other rules" not in unused
    more = [
        as_record(method="sb", accuracy=acc, epochs=30, **field)
        for acc, field in ((0.45, {"penalty": 0.01}), (0.34, {"k": 0}))
    ]
    both = Runs([*penalty_runs(0.36).specs, *(r.spec for r in more)], [*penalty_runs(0.36).records, *more], "paper")
    told = answers.penalty(both, 0.01)
    assert told.endswith(
        "(n = 1 seed). Of the other rules, training the penalised blocks helps State Bridge (+11.0 pp, n = 1)."
    )
    nobody = penalty_runs(0.36).only(method="bp")
    assert "do not have DFA" in answers.penalty(nobody, 0.01) and "0 of" not in answers.penalty(nobody, 0.01)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (["D1"], [], "it repairs D1 (scale)"),
        (["D1"], ["D2"], "it repairs D1 (scale), it breaks D2 (reference)"),
        (["D1", "D2"], ["D2"], "it repairs D1 (scale), D2 still fails"),
        (["D1", "D2"], ["D1", "D2"], "it repairs neither D1 nor D2, D1 and D2 still fail"),
        ([], [], "without it neither D1 nor D2 fails after 30 epochs, so there is nothing to repair"),
    ],
)
def test_what_was_repaired_what_is_left_and_what_broke(before, after, said):
    assert answers._repaired(before, after, 30) == said
    assert answers._repaired([], ["D1"], 4).endswith("nothing to repair, and it breaks D1 (scale)")


@pytest.mark.parametrize(
    ("accuracy", "cosine", "said"),
    [
        (0.35, 0.98, "The untrained stack is nearly the identity, a near-norm-preserving"),
        (0.35, 0.30, "nearly the identity is not the reason"),
        (0.11, 0.98, "It is not clearly above it"),
    ],
)
def test_why_the_frozen_network_is_above_chance_is_said_where_it_is(tmp_path, monkeypatch, accuracy, cosine, said):
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    monkeypatch.setenv(paths.RUNNER, "1")
    monkeypatch.setattr(identity_rows.identity, "measure", lambda *_: {"deviation": 0.2, "cosine": cosine})
    made = [as_record(method="dfa", k=0, accuracy=accuracy)]
    identity_rows.rows(made[0].spec.width, made[0].spec.depth, [42], "paper")
    assert said in answers.frozen(Runs([made[0].spec], made, "paper", "depth_ladder", "d256_L4"))


def test_two_points_by_the_rule_are_two_points_in_words():
    assert 100 * (0.57 - 0.55) < 2 and findings.helps([100 * (0.57 - 0.55)]) == "helps"
    assert findings.helps([1.99]) == "does not help"


def test_overview_tables_count_every_claim(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    Store(tmp_path / "paper").save(as_record())
    results = findings.verdicts("paper")
    total = overview.summary_table(results).iloc[-1]
    assert total.claims == len(claims.load_claims()) == total.reproduced + total.contradicted + total.inconclusive
    assert sum(len(group) for group in overview.claim_tables(results).values()) == total.claims
    assert "No claim is contradicted." in overview.contradictions("smoke", results)
    assert overview.leaning("smoke", results).startswith("No value:")
    assert overview.allowing("smoke", results).startswith("No claim")


def test_margins_that_allow_much_are_listed_whatever_their_verdict(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    for seed in (42, 123, 456):
        Store(tmp_path / "paper").save(as_record(method="sb", seed=seed, accuracy=0.20 + seed / 1e5))
    told = overview.allowing("paper", findings.verdicts("paper"))
    assert "`audit.d256_L4.accuracy.sb`" in told and "test: ±0.117" in told.replace("\u00a0", " ")
    assert "Even chance, 0.1, lies within the margin of `audit.d256_L4.accuracy.sb`." in told
    assert len(findings.verdicts("paper", "depth_ladder", "d512_L2")) == 16


def test_a_short_profile_says_what_it_cannot_show():
    assert "proves nothing" in overview.reach("smoke", [CASES["one seed"]], [])
    short = overview.reach("quick", [CASES["one seed"]], [])
    assert "1 seed" in short and "DFA still passes D1 and D2" in short


def test_a_profile_is_unfinished_until_every_section_is():
    done, half = CASES["three seeds"], CASES["rungs missing"]
    assert "every claim can be tested" in overview.reach("paper", [done], [])
    text = overview.reach("paper", [done, half], [])
    assert text.startswith(f"**Unfinished: {len(half.records)} of {len(half.specs)} runs")
    assert f"{len(done.specs)} of {len(done.specs)}, " in text and "make reproduce PROFILE=paper" in text


def test_an_unfinished_profile_says_how_many_claims_wait_for_its_runs(tmp_path):
    half, none_yet = CASES["rungs missing"], claims.check(claims.load_claims(), Store(tmp_path), "paper")
    assert "No claim waits for them. `make" in overview.reach("paper", [half], [])
    assert " claims wait for runs: a published number" in overview.reach("paper", [half], none_yet)


def test_a_contradiction_is_told_with_its_explanation(monkeypatch):
    claim = claims.load_claims()[0]
    result = claims.Result(
        claim.id, claim.statement, claim.kind, claim.expected, claim.margin, 0.2, None, 3, "contradicted", "", "", claim
    )
    numbers = {"a": {"metric": "test_accuracy", "method": "bp"}}
    entry = Entry(claims=[claim.id], text="The draw order differs, {a}.", numbers=numbers)
    known = Explanation(entry=entry, settings={"a": claim.setting}, published={})
    monkeypatch.setattr(overview, "load_explanations", lambda _: {})
    assert "Not explained yet." in overview.contradictions("smoke", [result])
    monkeypatch.setattr(overview, "load_explanations", lambda _: {claim.id: known})
    text = overview.contradictions("smoke", [result, result])
    assert text.count(f"`{claim.id}`") == 2 and text.count("The draw order differs, (not run). Evidence: no run") == 1


def test_an_explanation_is_told_once_and_then_referred_to(monkeypatch):
    first, second = [claim for claim in claims.load_claims() if claim.kind == "equivalence"][:2]
    contradicted, leaning = (
        claims.Result(c.id, c.statement, c.kind, c.expected, 0.02, 0.2, [0.0, 0.3], 3, verdict, "", "", c)
        for c, verdict in ((first, "contradicted"), (second, "inconclusive"))
    )
    numbers = {"a": {"metric": "test_accuracy", "method": "bp"}}
    entry = Entry(claims=[first.id, second.id], text="The draw order differs, {a}.", numbers=numbers)
    known = Explanation(entry=entry, settings={"a": first.setting}, published={})
    monkeypatch.setattr(overview, "load_explanations", lambda _: {first.id: known, second.id: known})
    assert "The draw order" in overview.contradictions("smoke", [contradicted, leaning])
    assert overview.leaning("smoke", [contradicted, leaning]).endswith(f"Explained above, under `{first.id}`.")
    assert "The draw order" in overview.leaning("smoke", [leaning])


def test_a_claim_of_several_parts_has_them_beside_its_words():
    claim = next(
        c for c in claims.load_claims() if c.form == "all" and c.all[0].direction == "above" and len(c.all) > 1
    )
    held = [line.threshold + (1 if line.direction == "above" else -1) for line in claim.all]
    held[0] = claim.all[0].threshold - 0.5
    result = claims.Result(
        claim.id, claim.statement, claim.kind, "", None, held, None, 3, "inconclusive", "", "", claim
    )
    row = overview.claim_table([result]).iloc[0]
    assert row.ours == f"{len(held) - 1} of {len(held)} on average" and row.statement.startswith(claim.statement)
    assert " *Ours: " in row.statement and "(n=" not in row.statement


def noisy_ladder(*rungs: list[float]) -> Runs:
    """rungs[k] = accuracies of three seeds at k."""
    seeds = (42, 123, 456)
    made = [
        as_record(method="fa", depth=len(rungs) - 1, k=k, seed=seed, accuracy=value)
        for k, values in enumerate(rungs)
        for seed, value in zip(seeds, values, strict=True)
    ]
    return Runs([record.spec for record in made], made, "paper", "depth_ladder", "d256_L4")


def test_a_step_is_named_only_where_the_paired_seeds_agree_on_it():
    runs = noisy_ladder([0.30, 0.31, 0.32], [0.40, 0.41, 0.42], [0.31, 0.45, 0.35], [0.20, 0.21, 0.22])
    text = findings_ladder.rungs(runs)
    assert "it rises at $k=1$ and drops at $k=3$; the step to $k=2$ cannot be told from scatter." in text
    assert (
        "is $k=1$, not told apart from $k=2$." in text
        and "At $k=2$ its seeds scatter widely: 0.310, 0.450, 0.350." in text
    )


def test_a_caption_says_which_rungs_tie_with_the_best_and_where():
    runs = noisy_ladder([0.30, 0.31, 0.32], [0.40, 0.41, 0.42], [0.31, 0.45, 0.35], [0.20, 0.21, 0.22])
    name = style.name(runs.specs[0].method)
    assert f"under {name} with $k=1$.**" in findings_ladder.caption(runs)
    assert findings_ladder.caption(runs).endswith(f" Not told apart from the best: {name} $k=2$.")
    both = findings_ladder.caption(runs, CASES["one seed"])
    assert f"Not told apart from the best: {name} $k=2$ at {findings.shape(runs)}." in both


def test_a_ladder_without_a_resolved_step_says_so():
    text = findings_ladder.rungs(noisy_ladder([0.30, 0.40, 0.35], [0.40, 0.30, 0.36], [0.35, 0.36, 0.30]))
    assert "Rung by rung nothing is resolved; the steps to $k=1$ and $k=2$ cannot be told from scatter" in text


def test_shapes_with_different_seeds_are_named():
    one, three = (replace(CASES[name], set_name=name.replace(" ", "_")) for name in ("one seed", "three seeds"))
    shape = findings.shape(three)
    caption = findings_ladder.caption(three, one)
    assert f"n = 3 at {shape} (`three_seeds`) and 1 at {shape} (`one_seed`) seeds" in caption


def test_two_sets_of_one_shape_are_told_apart():
    one = CASES["three seeds"]
    parts = [replace(one, set_name=name) for name in ("short", "long")]
    assert findings.places([one]) == [findings.shape(one)]
    assert findings.places(parts) == [f"{findings.shape(one)} (`{name}`)" for name in ("short", "long")]
    assert "(`short`) and $d=256$, $L=2$ (`long`), in this order: BP +20.0 ± 0.0 pp and +20.0" in answers.depth(parts)


def test_sentences_and_claims_are_decided_at_one_level():
    """Captions write "90 %" in words, so the two must not drift apart."""
    assert {claim.setting.alpha for claim in claims.load_claims()} == {findings.ALPHA} == {0.05}
