"""What the audit's records say, in sentences. Numbers, names and verbs come from the records."""

import math
from collections.abc import Callable

import pandas as pd

from creditaudit import decisions, metrics, style
from creditaudit.claimspec import depth_of, load_claims
from creditaudit.collect import Runs
from creditaudit.credit.settings import CREDIT_BRIDGE
from creditaudit.diagnosis import (
    D1_LIMIT,
    D2_FLOOR,
    D3_GAIN,
    OPEN,
    STABILITY_DRIFT,
    depth_is_used,
    reference_is_valid,
    scale_is_stable,
)
from creditaudit.diagnostics import BATCH, RHO_EPS, RHO_RELATIVE_EPS, TRAJECTORY_BATCH
from creditaudit.findings import bracketed, helps, listed, undecided
from creditaudit.report import digits
from creditaudit.spreads import by_method, decades, named_means, on_shared_seeds, sample_note, scatter_note, spread
from creditaudit.tables import summarise
from creditaudit.tables_audit import STUDY_BASELINE, pairs, per_run, trained

NOTHING = "**No run has finished yet.**"


def headline(runs: Runs) -> str:
    """Whom the usual criteria accept, whom D1 to D3 accept, and what that hides in each method they disagree on."""
    if not trained(runs).records:
        return f"The audit is {undecided(runs)}."
    found, rows = pairs(runs), per_run(runs)
    usual, together = (decisions.conclusions(found, name) for name in (decisions.USUAL, decisions.TOGETHER))
    misled = decisions.misled(found)
    verdict = f"Accuracy and cosine would accept {_accepted(usual)}; D1–D3 accept {_accepted(together)}{_open(found)}."
    if not misled:
        return f"{verdict} In these runs no method that the former accept is refused by the latter."
    cases = [f"- {_case(method, rows[rows.method == method])}{_other_bar(found, method)}" for method in misled]
    return "\n".join([verdict, "", *cases])


def _accepted(answers: dict[str, bool | None]) -> str:
    return listed([style.name(method) for method, answer in answers.items() if answer]) or "none"


def _open(found: list[decisions.Pair]) -> str:
    """On whom D1 to D3 do not decide: for want of runs, or because seeds differ."""
    said = decisions.votes(found, decisions.TOGETHER)
    undecided_on = {method: each for method, each in said.items() if decisions.majority(each) is None}
    waiting = [f"{style.name(method)}{_so_far(each)}" for method, each in undecided_on.items() if None in each]
    split = [style.name(method) for method, each in undecided_on.items() if None not in each]
    told = [f"wait for frozen runs of {listed(waiting)}"] if waiting else []
    told += [f"are split between seeds on {listed(split)}"] if split else []
    return f", and {listed(told)}" if told else ""


def _so_far(said: list[decisions.Answer]) -> str:
    """What the seeds say that can be judged already."""
    known = [answer for answer in said if answer is not None]
    return f" (so far accepted in {sum(known)} of the {len(known)} seeds that can be judged)" if known else ""


def _case(method: str, own: pd.DataFrame) -> str:
    """The looks of one misjudged method, and what is wrong with it."""
    wrong, seed = [], ", the worst seed" if len(own) > 1 else ""
    growth, g_last, gain = (own[name].astype(float) for name in ("growth", "g_last", "gain"))
    if growth.isna().any() or growth.max() > D1_LIMIT:
        worst = "without bound" if growth.isna().any() else f"up to {digits(growth.max())}-fold"
        wrong.append(f"one block multiplies the stream {worst} (D1{seed})")
    if g_last.isna().any() or g_last.min() < D2_FLOOR:
        worst = "not finite" if g_last.isna().any() else f"down to {digits(g_last.min())}"
        wrong.append(f"the reference gradient is {worst} (D2{seed})")
    if gain.notna().any() and not depth_is_used(gain.min() / 100):
        worst = f", {gain.min():+.1f} in the worst seed" if depth_is_used(gain.mean() / 100) else ""
        change = spread(own, "gain", places=1, signed=True)
        wrong.append(f"training its blocks changes accuracy, in pp, by {change} (D3{worst})")
    looks = f"accuracy {spread(own, 'accuracy')} and $\\Gamma$ = {spread(own, 'gamma')} look like learning"
    driven = f" Its blocks were driven by DFA for {_WARM} of its steps." if warm_up_epochs(own) else ""
    return f"**{style.name(method)}** is misjudged: {looks}, but {listed(wrong)}; {sample_note(own)}.{driven}"


def _other_bar(found: list[decisions.Pair], method: str) -> str:
    """A method with feedback matrices is held to a null measured with fresh ones: would the others' let it pass?"""
    own = [record for record, _ in found if record.spec.method == method and record.final.get("fresh_null")]
    bar = decisions.ABOVE_NULL * decisions.one_direction(found[0][0])
    other = [decisions.learns(record) and (metrics.read("gamma", record) or 0.0) > bar for record in own]
    if decisions.majority(other) == decisions.majority([decisions.learns_and_aligns(record) for record in own]):
        return ""
    return (
        " That its cosine looks like learning hangs on the null: it is held to that of fresh feedback matrices; by "
        f"${decisions.ABOVE_NULL:g}/\\sqrt{{dL}} = {bar:.3f}$, the bar of methods without any, it would be accepted in "
        f"{sum(other)} of {len(own)} seeds."
    )


_WARM = f"the first {100 * CREDIT_BRIDGE.warm_up:g} %"


def warm_up_epochs(rows: pd.DataFrame) -> int:
    """The last epoch in which DFA still drives Credit Bridge's blocks; 0 where it has no run."""
    own = rows[rows.method == "cb"]
    return math.ceil(CREDIT_BRIDGE.warm_up * own.epochs.iloc[0]) if len(own) else 0


def warm_up(epochs: pd.DataFrame) -> str:
    """What became of the stream under DFA's credit, and what under Credit Bridge's own."""
    own = epochs[epochs.method == "cb"]
    if not (last := warm_up_epochs(own)):
        return "Credit Bridge has no run here."
    told = (
        f"Credit Bridge begins with a warm-up, whose length is our choice: for {_WARM} of the steps, up to epoch "
        f"{last} of {own.epochs.iloc[0]}, DFA drives its blocks while the value net learns"
    )
    if last == own.epochs.iloc[0]:
        return f"{told}. So few epochs do not show what it makes of the rest."
    switch, end = (own[own.epoch == epoch] for epoch in (last, own.epochs.iloc[0]))
    norms = [f"{name} {_typical(at, 'h_last', 'not finite')}" for name, at in (("then", switch), ("at the end", end))]
    return (
        f"{told}. $\\lVert h_L \\rVert$ is {' and '.join(norms)} (geometric mean, n = {len(end)}). So what D1 and D2 "
        "find up to there is DFA's doing, and Credit Bridge answers only for what it makes of such a network."
    )


def _typical(own: pd.DataFrame, column: str, undefined: str) -> str:
    """The geometric mean over seeds, without its scatter, which the table has."""
    mean = decades(own, column)[column].mean()
    return undefined if pd.isna(mean) else digits(10.0**mean)


def accuracy_caption(rows: pd.DataFrame) -> str:
    shared, where = on_shared_seeds(rows)
    means = summarise(shared, ["method"], "accuracy").set_index("method")["mean"]
    if means.empty:
        return NOTHING
    others = means.drop("bp", errors="ignore").sort_values(ascending=False)
    best = (
        f"the best other method, {style.name(others.index[0])}, {others.iloc[0]:.3f}" if len(others) else "none beside"
    )
    lead = f"BP reaches {means['bp']:.3f}, {best}" if "bp" in means else f"BP is missing; {best}"
    bands = scatter_note(rows, "bands")
    return f"**{lead}{where}.** Accuracy over epochs on training pictures (augmented) and on test pictures; {bands}."


def norms_caption(rows: pd.DataFrame, epochs: pd.DataFrame) -> str:
    """Which methods end where D1 or D2 fails on the trajectories' batch of 1024."""
    if epochs.empty:
        return NOTHING
    last = epochs[epochs.epoch == epochs.epochs]
    scale, reference = _failing(last, "growth", scale_is_stable), _failing(last, "g_last", reference_is_valid)
    audited, bands = _failing(rows, "g_last", reference_is_valid), scatter_note(rows, "bands")
    other = "" if audited == reference else f" (at the verdict table's batch of {BATCH}: {listed(audited) or 'none'})"
    warm = ", dotted: where Credit Bridge's warm-up ends" if warm_up_epochs(epochs) else ""
    return (
        f"**After the last epoch D1 fails in {listed(scale) or 'none'}, and at batch {TRAJECTORY_BATCH} D2 fails in "
        f"{listed(reference) or 'none'}{other}.** Norms over epochs, geometric means ({bands}, in log10){warm}; "
        f"each run's a median over the first {TRAJECTORY_BATCH} test pictures. $\\lVert g_L \\rVert$ of a mean loss "
        f"over {TRAJECTORY_BATCH} reads {TRAJECTORY_BATCH / BATCH:g} times smaller than the table's, over {BATCH}, "
        "against the same floor."
    )


def _failing(rows: pd.DataFrame, column: str, passes: Callable[[float | None], bool]) -> list[str]:
    """The methods most of whose seeds fail; where it is just half of them, with a note."""

    def fails(value: float | None) -> bool:
        return not passes(None if pd.isna(value) else value)

    shares = {style.name(method): own[column].map(fails).mean() for method, own in by_method(rows)}
    return [name + (" (half of its seeds)" if share == 0.5 else "") for name, share in shares.items() if share >= 0.5]


def verdict_caption(rows: pd.DataFrame) -> str:
    if rows.empty:
        return NOTHING
    return (
        f"**{_passing(rows)}.** D1: the largest growth over one block, at most {D1_LIMIT:g}. D2: "
        f"$\\lVert g_L \\rVert$ with the loss averaged over {BATCH} pictures, at least {digits(D2_FLOOR)}; *per "
        f"sample*: without any average. D3: accuracy minus the frozen network's in pp, at least {100 * D3_GAIN:g}; "
        f"*over DFA's* subtracts DFA's frozen network, as the study does. {scatter_note(rows, '±')}; D1 and D2: "
        "geometric means, ×/÷ the factor of one std."
    )


def precondition(rows: pd.DataFrame) -> str:
    """Whether depth can pay at all in these networks, which D3 takes for granted."""
    gains = rows[rows.method == "bp"].gain.dropna().astype(float).tolist()
    asks = "D3 means something only where depth can pay, and BP tells whether it can"
    if not gains:
        return f"{asks}; no BP run has its frozen twin here yet, so that is open."
    return f"{asks}: training the blocks {helps(gains)} it ({bracketed(gains)}, n = {len(gains)})."


def by_the_studys_accuracies(rows: pd.DataFrame) -> str:
    """For whom D3 would be decided otherwise by what the study published; it subtracts DFA's frozen network."""
    known = _published_accuracies(rows)
    frozen = known.get(("depth_ladder", STUDY_BASELINE, 0))
    if frozen is None:
        return "The study publishes no frozen accuracy of this shape after as many epochs: its own D3 cannot be told."
    ours = {method: own.gain_dfa.mean() for method, own in by_method(rows.dropna(subset=["gain_dfa"]))}
    full = int(rows.depth.iloc[0])
    theirs = {method: 100 * (known.get(("audit", method, full), math.nan) - frozen) for method in ours}
    both = [method for method in ours if not math.isnan(theirs[method])]
    told = [
        f"{style.name(method)} ({theirs[method]:+.1f} pp there, {ours[method]:+.1f} pp here)".replace("-", "−")
        for method in both
        if depth_is_used(theirs[method] / 100) != depth_is_used(ours[method] / 100)
    ]
    same = f"as here for {listed([style.name(method) for method in both])}" if both else "for none that has runs here"
    how = f"otherwise than here for {listed(told)}" if told else same
    return f"By the accuracies the study published, over DFA's frozen network, D3 is decided {how}."


def _published_accuracies(rows: pd.DataFrame) -> dict[tuple[str, str, int], float]:
    """section, method and k -> the study's, for the shape and epochs of these runs."""
    shapes = set(zip(rows.width, rows.depth, rows.epochs, strict=True))
    return {
        (claim.section, claim.quantity.method, depth_of(claim.quantity.k, claim.setting)): claim.expected
        for claim in reversed(load_claims())  # so that a table's own value stays, not that of a cross-check after it
        if claim.kind == "equivalence"
        and (claim.quantity.metric, claim.quantity.penalty, claim.quantity.epochs) == ("test_accuracy", 0.0, None)
        and (claim.setting.width, claim.setting.depth, claim.setting.epochs) in shapes
    }


def _passing(rows: pd.DataFrame) -> str:
    """Who passes and who fails in most seeds, and who cannot be judged yet."""
    waits, split = "waits for frozen runs", "is split between seeds"
    groups: dict[str, list[str]] = {"passes": [], "fails": [], waits: [], split: []}
    for method, own in by_method(rows):
        said = [_passed(verdict) for verdict in own.verdict]
        most = decisions.majority(said)
        agree = f" ({said.count(most)} of {len(said)} seeds)" if most is not None and set(said) != {most} else ""
        verb = {True: "passes", False: "fails", None: waits if None in said else split}[most]
        groups[verb].append(style.name(method) + agree)
    clauses = [_conjugated(names, verb) for verb, names in groups.items() if names]
    return ", ".join(clauses) or "No run has finished yet"


def _passed(verdict: str) -> decisions.Answer:
    return False if verdict.startswith("FAIL") else None if OPEN in verdict else True


def _conjugated(names: list[str], verb: str) -> str:
    """BP passes; BP and FA pass."""
    first, _, rest = verb.partition(" ")
    many = {"passes": "pass", "fails": "fail", "waits": "wait", "is": "are"}[first]
    return " ".join(filter(None, [listed(names), first if len(names) == 1 else many, rest]))


def layers_caption(rows: pd.DataFrame, runs: Runs) -> str:
    if rows.empty:
        return NOTHING
    lead = "There is one block, and none behind it.**"
    if last := runs.specs[0].depth - 1:
        lead = f"{_pointing(rows, runs)}.** Over blocks 1 to {last} it is {named_means(rows, 'gamma_deep')}."
    return (
        f"**{lead} Credit against the gradient at the "
        "block's *input*; $\\rho$ and nudging in float64; a useful nudge is negative, on a log scale both ways "
        f"(means, {scatter_note(rows)}). Grey: ±2 std of credit that knows nothing, one random direction for all "
        "samples, $2/\\sqrt{d}$."
    )


def _pointing(rows: pd.DataFrame, runs: Runs) -> str:
    """Whose credit points along the gradient behind the first block, beyond what ignorance scores there."""
    spec = runs.specs[0]
    bar = 2 * (spec.width * (spec.depth - 1)) ** -0.5  # 2 std of one random direction per block, over L - 1 blocks
    told = {
        "along": "beyond {bar} for {names}",
        "against": "below −{bar} for {names}",
        "within": "within ±{bar}, as of credit that knows nothing, for {names}",
        "split": "not the same in every seed for {names}",
        "undefined": "undefined for {names}",
    }
    sides: dict[str, list[str]] = {}
    for method, own in by_method(rows):
        sides.setdefault(_side(own.gamma_deep.astype(float), bar), []).append(style.name(method))
    clauses = [text.format(bar=digits(bar), names=listed(sides[side])) for side, text in told.items() if side in sides]
    return f"Behind the first block the cosine is {'; '.join(clauses)}"


def _side(cosines: pd.Series, bar: float) -> str:
    """Of all seeds: along the gradient, against it, or within what credit that knows nothing scores."""
    if cosines.isna().any():
        return "undefined"
    sides = {"along": cosines > bar, "against": cosines < -bar, "within": cosines.abs() <= bar}
    return next((side for side, here in sides.items() if here.all()), "split")


def conventions_caption() -> str:
    return (
        "Readings of the same credit, means over blocks, ± std over $n$ seeds (ddof 1): four cosines, and how many "
        f"were undefined; $\\rho$ with the study's step, $10^{{{math.log10(RHO_EPS):.0f}}}$, and with one of "
        f"$10^{{{math.log10(RHO_RELATIVE_EPS):.0f}}}$ of the state's norm, which an exploded state feels too."
    )


def bars_caption(rows: pd.DataFrame) -> str:
    if rows.empty:
        return NOTHING
    shared, where = on_shared_seeds(rows)
    ranked = [_ranked(shared, column) for column in ("accuracy", "gamma")]
    return (
        f"**From the best{where}, by accuracy: {ranked[0]}; by cosine: {ranked[1]}.** Cosine, $\\rho$ and nudging are "
        f"means over all blocks; dotted is chance (means, {scatter_note(rows)})."
    )


def _ranked(rows: pd.DataFrame, column: str) -> str:
    """Methods by their mean, the highest first; those that have none are named."""
    order = list(summarise(rows, ["method"], column).sort_values("mean", ascending=False).method)
    lost = [style.name(method) for method, _ in by_method(rows) if method not in order]
    return ", ".join(map(style.name, order)) + (f" (undefined: {listed(lost)})" if lost else "")


def side_readings(rows: pd.DataFrame, epochs: pd.DataFrame) -> str:
    """What the study reads beside its diagnostics, and how well float32 resolved EP's credit."""
    if rows.empty:
        return "No run has finished yet."
    steady = [f"{style.name(method)} {spread(own, 'stability') or 'undefined'}" for method, own in by_method(rows)]
    told = [
        f"Stability, the cosine between batches of the mean gradient direction at layer $L/2$ (above "
        f"{STABILITY_DRIFT:g} the study speaks of drift): {listed(steady)} ({sample_note(rows)})."
    ]
    if (exact := rows[rows.method == "bp"].stability.astype(float).mean()) > STABILITY_DRIFT:
        told.append(f"BP itself, at {exact:.3f}, is above that line here, so it tells nothing apart.")
    last = epochs[epochs.epoch == epochs.epochs].dropna(subset=["credit_resolution"])
    if len(last):
        cosines = [cosine for states in last.credit_resolution for cosine in states]
        worst = "undefined for some states" if None in cosines else f"{min(cosines):.3f} for the worst state and seed"
        told.append(
            f"EP trains on a small difference of states in float32: with the same in float64 its credit has a cosine, "
            f"averaged over the last epoch's last batch, of {worst} (n = {len(last)})."
        )
    return " ".join(told)


def decision_reading(runs: Runs) -> str:
    """What each way of looking would have got wrong, taking D1 to D3 together as the standard."""
    found = pairs(runs)
    standard = {
        m: answer for m, answer in decisions.conclusions(found, decisions.TOGETHER).items() if answer is not None
    }
    if not standard:
        return f"The table is {undecided(runs)}." if runs.missing else "Seeds are split on every method."
    lines = []
    for criterion in decisions.CRITERIA[:-1]:
        said = decisions.conclusions(found, criterion.name)
        fooled = [style.name(m) for m, answer in standard.items() if said[m] is True and answer is False]
        lines.append(f"{criterion.name}: {listed(fooled) or 'none'}")
    return f"Accepted by one criterion and refused by D1–D3 together: {'; '.join(lines)}.{_misjudged(runs)}"


def _misjudged(runs: Runs) -> str:
    """How much of the usual reading hangs on the first block."""
    found = pairs(runs)
    fooled, rows = decisions.misled(found), per_run(runs)
    if not fooled:
        return ""
    deep, all_ = (named_means(rows[rows.method.isin(fooled)], column) for column in ("gamma_deep", "gamma"))
    return f" The cosine of the misjudged is {all_}; without block 0, {deep}."
