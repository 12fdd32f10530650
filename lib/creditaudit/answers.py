"""The four answers of the first page, from the records alone: each a question, one bold sentence, its evidence."""

from collections.abc import Iterable, Sequence
from statistics import mean

import numpy as np

from creditaudit import identity_rows, metrics, style, tables
from creditaudit.claims import Result
from creditaudit.collect import Runs, resume_command
from creditaudit.decisions import ABOVE_CHANCE
from creditaudit.findings import HELPS, VERBS, amount, bracketed, helps, listed, of_seeds, places, shape, undecided
from creditaudit.findings_identity import NEARLY
from creditaudit.report import digits, summary

MEANING = {"D1": "D1 (scale)", "D2": "D2 (reference)"}


def depth(ladders: Iterable[Runs]) -> str:
    """Does training depth help? By D3's rule: at least +2 pp over the frozen network."""
    question, ladders = "Does training depth help?", list(ladders)
    full = [_full_gains(runs) for runs in ladders]
    methods = style.in_order(method for gains in full for method in gains)
    pending = [runs for runs in ladders if runs.missing]
    if not methods:
        return _answer(question, undecided(pending[0]) if pending else "there are no runs")
    names = places(ladders)
    where = listed(names) + (", in this order" if len(ladders) > 1 else "")
    counts = sorted({len(sample) for gains in full for sample in gains.values()})
    seeds = "–".join(map(str, dict.fromkeys([counts[0], counts[-1]])))
    told = [
        _worth(method, {name: gains.get(method) for name, gains in zip(names, full, strict=True)}) for method in methods
    ]
    verdicts, amounts = ("; ".join(clauses) for clauses in zip(*told, strict=True))
    lacking = listed([f"{len(runs.missing)} of {len(runs.specs)} runs at {shape(runs)}" for runs in pending])
    verb = "is" if sum(len(runs.missing) for runs in pending) == 1 else "are"
    left = f" Preliminary: {lacking} {verb} missing (`{resume_command(ladders[0].profile, ladders[0].section)}`)."
    return _answer(
        question,
        f"training all blocks instead of none {verdicts}",
        f"What it gains at {where}: {amounts} (mean ± std of n = {seeds} paired seeds; “helps” is D3's rule, at least "
        f"{HELPS:+.0f} pp, by the 90 % interval where there are several seeds).{left if pending else ''}",
    )


def _answer(question: str, sentence: str, evidence: str = "") -> str:
    return f"*{question}* **{sentence[:1].upper()}{sentence[1:]}.** {evidence}".rstrip()


def _full_gains(runs: Runs) -> dict[str, list[float]]:
    """method -> the gain of each seed with all blocks trained, in pp."""
    gain = tables.gains(runs.frame())
    return {method: own.gain.tolist() for method, own in gain[gain.k == gain.depth].groupby("method")}


def _worth(method: str, gains: dict[str, list[float] | None]) -> tuple[str, str]:
    """Whether, and how much. `gains`: of each shape, seed by seed."""
    known, name = {place: sample for place, sample in gains.items() if sample}, style.name(method)
    all_there = len(known) == len(gains)
    told = [amount(sample) if all_there else f"{amount(sample)} at {place}" for place, sample in known.items()]
    verbs = [helps(sample) for sample in known.values()]
    if all_there and len(set(verbs)) == 1:
        return f"{verbs[0]} {name}", f"{name} {listed(told)}"
    whom = [name, *["it"] * len(verbs)]
    each = [f"{verb} {it} at {place}" for verb, it, place in zip(verbs, whom, known, strict=False)]
    return listed(each), f"{name} {listed(told)}"


def penalty(runs: Runs, rescue: float) -> str:
    """What the penalty fixes and what it does not, for DFA, at the section's own epochs."""
    question, epochs = "What does the penalty fix, and what not?", min(spec.epochs for spec in runs.specs)
    here = runs.only(epochs=epochs)
    plain, fixed = here.only(method="dfa", k=_depth(runs), penalty=0.0), here.only(method="dfa", penalty=rescue)
    frozen, bp = here.only(method="dfa", k=0), here.only(method="bp", k=_depth(runs), penalty=0.0)
    groups = (plain, fixed, frozen, bp)
    seeds = sorted(set.intersection(*(set(group.seeds) for group in groups)))
    if not seeds:
        absent = "these runs do not have DFA with and without the penalty and frozen, beside BP, in one seed"
        return _answer(question, undecided(runs) if runs.missing else absent)
    plain, fixed, frozen, bp = (group.only(seed=seeds) for group in groups)
    norms = ", its ".join(
        f"{symbol} from {_power(_typical(plain, name))} to {_power(_typical(fixed, name))} "
        f"(frozen: {_power(_typical(frozen, name))}, BP: {_power(_typical(bp, name))})"
        for symbol, name in ((r"$\lVert h_L \rVert$", "h_norm"), (r"$\lVert g_L \rVert$ (batch 128)", "g_norm"))
    )
    over_frozen, over_bp = (of_seeds(_gains(fixed, other), 1, signed=True) for other in (frozen, bp))
    return _answer(
        question,
        f"for DFA {_repaired(_failures(plain), _failures(fixed), epochs)}; {_used(fixed, frozen)}",
        f"With $\\lambda={rescue:g}$ and after {epochs} epochs it takes DFA's {norms}, its deep cosine from "
        f"{_cosine(plain)} to {_cosine(fixed)}, and its accuracy from {of_seeds(_accuracies(plain))} to "
        f"{of_seeds(_accuracies(fixed))}: {over_frozen} pp against leaving the blocks frozen, {over_bp} pp against BP "
        f"({_scatter(len(seeds))}).{_other_rules(here, rescue)}",
    )


def _scatter(n: int) -> str:
    return f"mean ± std of n = {n} seeds, of norms the geometric mean" if n > 1 else "n = 1 seed"


def _other_rules(here: Runs, rescue: float) -> str:
    """The same question of D3 for the rules that the answer is not about."""
    told: dict[str, list[str]] = {}
    for method in style.in_order({spec.method for spec in here.specs} - {"bp", "dfa"}):
        fixed, frozen = here.only(method=method, penalty=rescue), here.only(method=method, k=0)
        if gains := _gains(fixed, frozen):
            told.setdefault(helps(gains), []).append(f"{style.name(method)} ({bracketed(gains)}, n = {len(gains)})")
    clauses = [f"{verb} {listed(told[verb])}" for verb in VERBS if verb in told]
    return f" Of the other rules, training the penalised blocks {listed(clauses)}." if clauses else ""


def _depth(runs: Runs) -> int:
    return runs.specs[0].depth


def _accuracies(runs: Runs) -> list[float]:
    return [record.final["test_accuracy"] for record in runs.records]


def _typical(runs: Runs, name: str) -> float:
    """The geometric mean over seeds of the last layer's norm; infinite where a run's is not a number."""
    values = [record.final[name][-1] for record in runs.records]
    return float(np.exp(np.mean(np.log(values)))) if None not in values else float("inf")


def _cosine(runs: Runs) -> str:
    """Deep Gamma over seeds; undefined where a run's is."""
    values = [metrics.read("gamma_deep", record) for record in runs.records]
    return "undefined" if None in values else of_seeds(values)


def _repaired(before: list[str], after: list[str], epochs: int) -> str:
    """What the failures without and with the penalty tell of it."""
    broken = [MEANING[name] for name in after if name not in before]
    if not before:
        nothing = f"without it neither D1 nor D2 fails after {epochs} epochs, so there is nothing to repair"
        return f"{nothing}, and it breaks {listed(broken)}" if broken else nothing
    mended = [MEANING[name] for name in before if name not in after]
    left = [name for name in before if name in after]
    told = [f"it repairs {listed(mended) or 'neither D1 nor D2'}"]
    told += [f"{listed(left)} still fail{'s' if len(left) == 1 else ''}"] if left else []
    told += [f"it breaks {listed(broken)}"] if broken else []
    return ", ".join(told)


def _used(trained: Runs, frozen: Runs) -> str:
    """By D3's rule, between the same seeds."""
    gains = _gains(trained, frozen)
    asked = f"the {HELPS:g} pp that D3 asks for"
    said = f"gain {asked}", f"gain less than {asked}", f"may or may not gain {asked} ({amount(gains)})"
    return f"its blocks {said[VERBS.index(helps(gains))]}"


def _gains(trained: Runs, frozen: Runs) -> list[float]:
    """In percentage points, of the seeds that both have."""
    ends = [
        {record.spec.seed: record.final["test_accuracy"] for record in group.records} for group in (trained, frozen)
    ]
    return [100 * (ends[0][seed] - ends[1][seed]) for seed in ends[0] if seed in ends[1]]


def _failures(runs: Runs) -> list[str]:
    """Which of D1 and D2 fail in most of these runs."""
    failed = [name for record in runs.records for name in metrics.failures(record)]
    return [name for name in ("D1", "D2") if failed.count(name) * 2 > len(runs.records)]


def frozen(ladder: Runs) -> str:
    """Why the frozen network is above chance: the untrained stack hardly changes what passes through."""
    question = "Why is $k=0$ above chance?"
    means = tables.summarise(ladder.only(k=0).frame(), ["method"], "accuracy").set_index("method")
    spec = ladder.specs[0]
    rows = identity_rows.stored(spec.width, spec.depth, ladder.profile, spec.data)
    if means.empty:
        return _answer(question, undecided(ladder))
    if not rows:
        command = f"make reproduce PROFILE={ladder.profile} SECTION=identity_check"
        return _answer(question, f"not yet decided: the untrained stack has not been measured (`{command}`)")
    values = listed(
        [
            f"{style.name(m)} {tables.plus_minus(means['mean'][m], means['std'][m])} (n = {means['n'][m]})"
            for m in style.in_order(means.index)
        ]
    )
    accuracy = f"With every block frozen accuracy is {values}, where chance is {style.CHANCE:.1f}"
    if means["mean"].min() < ABOVE_CHANCE * style.CHANCE:
        return _answer(question, "it is not clearly above it", f"{accuracy}.")
    cosine = mean(row["cosine"] for row in rows.values())
    texts = {name: of_seeds([row[name] for row in rows.values()]) for name in ("deviation", "cosine")}
    norms = [record.final["h_norm"] for record in ladder.only(k=0).records]
    ends = [h[-1] / h[0] for h in norms if None not in h]
    trained = (
        f"; after training the rest {_range(ends)} in {len(ends)} frozen run{'s' * (len(ends) > 1)}" if ends else ""
    )
    measured = (
        f"$\\lVert h_L-h_0\\rVert/\\lVert h_0\\rVert$ {texts['deviation']}, $\\cos(h_L,h_0)$ {texts['cosine']}, "
        f"n = {len(rows)}{trained}"
    )
    reason = (
        "the untrained stack is nearly the identity, a near-norm-preserving random feature map between an embed and a "
        "readout that do train: a nearly linear classifier, which is well above chance"
        if cosine >= NEARLY
        else "that the untrained stack is nearly the identity is not the reason"
    )
    return _answer(question, reason, f"{accuracy}; the untrained stack has {measured}.")


def _range(ratios: Sequence[float]) -> str:
    low, high = f"{min(ratios):.3f}", f"{max(ratios):.3f}"
    return rf"$\lVert h_L\rVert/\lVert h_0\rVert$ is {low if low == high else f'{low} to {high}'}"


def certainty(results: Sequence[Result], seeds: Sequence[int]) -> str:
    """How sure are we: the counts, the seeds, the false verdicts to expect."""
    counted = summary(results)
    decided = [result for result in results if result.kind != "exact" and result.verdict != "inconclusive"]
    early = sum(0 < result.n < len(seeds) for result in decided)
    fewer = f" ({early} of the verdicts on fewer, because the rest of their runs are missing)" if early else ""
    return _answer(
        "How sure are we?",
        f"{counted.reproduced} of {counted.total} published claims are reproduced, {counted.contradicted} contradicted "
        f"and {counted.inconclusive} inconclusive, on {len(seeds)} seed{'' if len(seeds) == 1 else 's'}{fewer}",
        f"{counted.tested} had the runs for a test at $\\alpha={counted.alpha:g}$; {counted.luck}.",
    )


def _power(value: float) -> str:
    if not np.isfinite(value):
        return "not finite"
    if 0.01 <= value < 1000:
        return digits(value)
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"${mantissa}\\times 10^{{{int(exponent)}}}$"
