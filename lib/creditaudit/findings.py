"""What the records say, in sentences. Every number and every verb comes from a record; what cannot be said yet is
said to be undecided."""

from collections.abc import Iterable, Sequence
from statistics import mean

import numpy as np
import pandas as pd

from creditaudit import identity, identity_rows, metrics, params, paths, protocol, style, tables
from creditaudit.claims import Result, check, load_claims
from creditaudit.collect import Runs, resume_command
from creditaudit.diagnosis import D3_GAIN
from creditaudit.records import Store
from creditaudit.report import summary
from creditaudit.verdicts import of_sample

MEANING = {"D1": "D1 (scale)", "D2": "D2 (reference)"}
HELPS = 100 * D3_GAIN  # percentage points: D3's own threshold
VERBS = ("helps", "does not help", "may or may not help")
ALPHA = 0.05  # of a sentence: one-sided, each way, as of a claim


def section_runs(section: str, set_name: str, profile: str) -> Runs:
    """The runs of another section, as its own notebook would ask for them; nothing is trained."""
    values = params.parameters(section, set_name, profile)
    specs = protocol.runs_of(section, values)
    store = Store(paths.profile_dir(profile))
    records = [record for spec in dict.fromkeys(specs) if (record := store.get(spec)) is not None]
    return Runs(list(dict.fromkeys(specs)), records, profile, section, set_name)


def verdicts(profile: str, section: str | None = None, set_name: str | None = None) -> list[Result]:
    """Every claim (of one section and set) against the records of a profile."""
    claims = [claim for claim in load_claims() if section in (None, claim.section) and set_name in (None, claim.set)]
    return check(claims, Store(paths.profile_dir(profile)), profile)


def shape(runs: Runs) -> str:
    spec = runs.specs[0]
    return f"$d={spec.width}$, $L={spec.depth}$"


def undecided(runs: Runs) -> str:
    count = f"{len(runs.missing)} of {len(runs.specs)} runs are missing"
    return f"not yet decided: {count} (`{resume_command(runs.profile, runs.section, runs.set_name)}`)"


def listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


def depth_answer(ladders: Iterable[Runs]) -> str:
    """Does training depth help? By D3's rule: at least +2 pp over the frozen network."""
    question, ladders = "**Does training depth help?**", list(ladders)
    full = [_full_gains(runs) for runs in ladders]
    methods = style.in_order(method for gains in full for method in gains)
    pending = [runs for runs in ladders if runs.missing]
    if not methods:
        return f"{question} {_capital(undecided(pending[0])) if pending else 'There are no runs'}."
    places = listed([shape(runs) for runs in ladders]) + (", in this order," if len(ladders) > 1 else "")
    counts = sorted({len(sample) for gains in full for sample in gains.values()})
    seeds = "–".join(map(str, dict.fromkeys([counts[0], counts[-1]])))
    clauses = [
        _worth(method, {shape(runs): gains.get(method) for runs, gains in zip(ladders, full, strict=True)})
        for method in methods
    ]
    lacking = listed([f"{len(runs.missing)} of {len(runs.specs)} runs at {shape(runs)}" for runs in pending])
    left = f" Preliminary: {lacking} are missing (`{resume_command(ladders[0].profile, ladders[0].section)}`)."
    return (
        f"{question} At {places} training all blocks instead of none {'; '.join(clauses)} (means of n = {seeds} "
        f"paired seeds; “helps” is D3's rule, at least {HELPS:+.0f} pp, by the 90 % interval where there are several "
        f"seeds).{left if pending else ''}"
    )


def _full_gains(runs: Runs) -> dict[str, list[float]]:
    """method -> the gain of each seed with all blocks trained, in pp."""
    gain = tables.gains(runs.frame())
    return {method: own.gain.tolist() for method, own in gain[gain.k == gain.depth].groupby("method")}


def _worth(method: str, gains: dict[str, list[float] | None]) -> str:
    """`gains`: of each shape, seed by seed."""
    known = {place: sample for place, sample in gains.items() if sample}
    amounts = listed([amount(sample) for sample in known.values()])
    amounts += "" if len(known) == len(gains) else " so far"
    verbs, name = [helps(sample) for sample in known.values()], style.name(method)
    if len(set(verbs)) == 1:
        return f"**{verbs[0]} {name}**: {amounts}"
    whom = [name, *["it"] * len(verbs)]
    each = [f"{verb} {it} at {place}" for verb, it, place in zip(verbs, whom, known, strict=False)]
    return f"**{listed(each)}**: {amounts}"


def _interval(sample: Sequence[float]) -> tuple[float, float]:
    """Of the mean, 90 %; one seed has no interval, its value stands alone."""
    return of_sample(sample).bounds(ALPHA) if len(sample) > 1 else (sample[0], sample[0])


def helps(sample: Sequence[float]) -> str:
    """Does this gain, in pp and one entry per seed, reach D3's threshold?"""
    low, high = _interval(sample)
    return VERBS[0] if low >= HELPS else VERBS[1] if high < HELPS else VERBS[2]


def amount(sample: Sequence[float]) -> str:
    """The mean gain; with its interval where that decides nothing."""
    text = f"{mean(sample):+.1f} pp"
    if helps(sample) == VERBS[2]:
        text += " (90 % interval {:+.1f} to {:+.1f})".format(*_interval(sample))
    return text.replace("-", "−")


def penalty_answer(runs: Runs, rescue: float) -> str:
    """What the penalty fixes and what it does not, for DFA, at the section's own epochs."""
    question, epochs = "**What does the penalty fix?**", min(spec.epochs for spec in runs.specs)
    here = runs.only(epochs=epochs)
    plain, fixed = here.only(method="dfa", k=_depth(runs), penalty=0.0), here.only(method="dfa", penalty=rescue)
    frozen, bp = here.only(method="dfa", k=0), here.only(method="bp", k=_depth(runs), penalty=0.0)
    groups = (plain, fixed, frozen, bp)
    seeds = sorted(set.intersection(*(set(group.seeds) for group in groups)))
    if not seeds:
        return f"{question} {_capital(undecided(runs))}."
    plain, fixed, frozen, bp = (group.only(seed=seeds) for group in groups)
    norms = " and ".join(
        f"{symbol} from {_power(_typical(plain, name))} to {_power(_typical(fixed, name))} "
        f"(frozen: {_power(_typical(frozen, name))}, BP: {_power(_typical(bp, name))})"
        for symbol, name in ((r"$\lVert h_L \rVert$", "h_norm"), (r"$\lVert g_L \rVert$ (batch 128)", "g_norm"))
    )
    before, after, still, best = (_accuracy(group) for group in (plain, fixed, frozen, bp))
    return (
        f"{question} A penalty of $\\lambda={rescue:g}$ takes DFA's {norms}, its deep cosine from {_cosine(plain)} to "
        f"{_cosine(fixed)} and its accuracy from {before:.3f} to {after:.3f} ({epochs} epochs, n = {len(seeds)}): "
        f"{_repaired(plain, fixed)}; with {_points(after - still)} pp against leaving it frozen and "
        f"{_points(after - best)} pp against BP, {_used(fixed, frozen)}."
    )


def _depth(runs: Runs) -> int:
    return runs.specs[0].depth


def _accuracy(runs: Runs) -> float:
    return mean(record.final["test_accuracy"] for record in runs.records)


def _typical(runs: Runs, name: str) -> float:
    """The geometric mean over seeds of the last layer's norm; infinite where a run overflowed."""
    values = [record.final[name][-1] for record in runs.records]
    return float(np.exp(np.mean(np.log(values)))) if None not in values else float("inf")


def _cosine(runs: Runs) -> str:
    """Deep Gamma, mean over seeds; undefined where a run's is."""
    values = [metrics.read("gamma_deep", record) for record in runs.records]
    return "undefined" if None in values else f"{mean(values):.3f}".replace("-", "−")


def _repaired(plain: Runs, fixed: Runs) -> str:
    broken, left = _failures(plain), _failures(fixed)
    if not broken:
        return "without it neither D1 nor D2 fails, so after so few epochs there is nothing to repair"
    mended = [MEANING[name] for name in broken if name not in left]
    repaired = f"it repairs {listed(mended) or 'neither D1 nor D2'}"
    return f"{repaired}, {listed(left)} still fail{'s' if len(left) == 1 else ''}" if left else repaired


def _used(trained: Runs, frozen: Runs) -> str:
    """By D3's rule, between the same seeds."""
    ends = [
        {record.spec.seed: record.final["test_accuracy"] for record in group.records} for group in (trained, frozen)
    ]
    gains = [100 * (ends[0][seed] - ends[1][seed]) for seed in ends[0]]
    asked = f"the {HELPS:g} pp that D3 asks for"
    said = f"gain {asked}", f"gain less than {asked}", f"may or may not gain {asked} ({amount(gains)})"
    return f"its blocks {said[VERBS.index(helps(gains))]}"


def _failures(runs: Runs) -> list[str]:
    """Which of D1 and D2 fail in most of these runs."""
    failed = [name for record in runs.records for name in metrics.failures(record)]
    return [name for name in ("D1", "D2") if failed.count(name) * 2 > len(runs.records)]


def frozen_answer(ladder: Runs) -> str:
    """Why the frozen network is above chance: the untrained stack hardly changes what passes through."""
    question = "**Why is $k=0$ above chance?**"
    frozen = tables.summarise(ladder.only(k=0).frame(), ["method"], "accuracy").set_index("method")
    spec = ladder.specs[0]
    rows = identity_rows.stored(spec.width, spec.depth, ladder.profile, spec.data)
    if frozen.empty:
        return f"{question} {_capital(undecided(ladder))}."
    if not rows:
        command = f"make reproduce PROFILE={ladder.profile} SECTION=identity_check"
        return f"{question} Not yet decided: the untrained stack has not been measured (`{command}`)."
    values = listed([f"{style.name(m)} {frozen['mean'][m]:.3f}" for m in style.in_order(frozen.index)])
    deviation, cosine = (mean(row[name] for row in rows.values()) for name in ("deviation", "cosine"))
    norms = [record.final["h_norm"] for record in ladder.only(k=0).records]
    ends = [h[-1] / h[0] for h in norms if None not in h]
    trained = f"; after training {_range(ends)} in {len(ends)} frozen run{'s' * (len(ends) > 1)}" if ends else ""
    return (
        f"{question} With every block frozen accuracy is {values}, where chance is {style.CHANCE:.1f}, because the "
        f"untrained stack is nearly the identity ($\\lVert h_L-h_0\\rVert/\\lVert h_0\\rVert={deviation:.3f}$, "
        f"$\\cos(h_L,h_0)={cosine:.3f}$, n = {len(rows)}{trained}): a near-norm-preserving random feature map "
        f"between an embed and a readout that do train, hence a nearly linear classifier."
    )


def _range(ratios: Sequence[float]) -> str:
    low, high = f"{min(ratios):.3f}", f"{max(ratios):.3f}"
    return rf"$\lVert h_L\rVert/\lVert h_0\rVert$ is {low if low == high else f'{low} to {high}'}"


NO_CLAIMS = "The study publishes no identity check of this shape."


def identity_reading(tidy: pd.DataFrame) -> str:
    """How near to the identity the untrained stack is."""
    last = tidy[tidy.layer == tidy.layer.max()]
    seeds = tidy.seed.nunique()
    moved, turned = (tables.plus_minus(last[name].mean(), last[name].std()) for name in ("deviation", "cosine"))
    return (
        f"At initialisation each block adds a residual of {tidy.ratio.mean():.3f} of the stream's norm; the stack "
        f"moves the stream by {moved} of its norm and leaves it at cosine {turned} with where it started "
        f"(n = {seeds} seed{'' if seeds == 1 else 's'})."
    )


def identity_caption(tidy: pd.DataFrame) -> str:
    depth = int(tidy.layer.max())
    measured = tidy[tidy.layer == depth].deviation.mean()
    walk = tidy.ratio.mean() * depth**0.5
    return (
        f"**Random blocks push the stream at right angles, a little each:** after {depth} blocks it has moved by "
        f"{measured:.3f}, where a random walk would have moved by {walk:.3f}. Points: mean ± std (ddof 1, "
        f"n = {tidy.seed.nunique()}), dots: seeds, grey: random walk with the mean step $r$."
    )


def identity_provenance(set_name: str, profile: str, tidy: pd.DataFrame, data: str) -> str:
    seeds = sorted(tidy.seed.unique())
    return (
        f"Set `{set_name}`, profile `{profile}`: n = {len(seeds)} (seed {', '.join(map(str, seeds))}), "
        f"{identity.PICTURES} test pictures of `{data}`, no training; cpu, outputs/{profile}/identity.json."
    )


def certainty(results: Sequence[Result], seeds: Sequence[int]) -> str:
    """How sure are we: the counts, the seeds, the false verdicts to expect."""
    counted = summary(results)
    return (
        f"**How sure are we?** {counted.reproduced} of {counted.total} published claims are reproduced, "
        f"{counted.contradicted} contradicted and {counted.inconclusive} inconclusive, on {len(seeds)} "
        f"seed{'' if len(seeds) == 1 else 's'}; {counted.tested} had the runs for a test at "
        f"$\\alpha={counted.alpha:g}$; {counted.luck}."
    )


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f}".replace("-", "−")


def _power(value: float) -> str:
    if not np.isfinite(value):
        return "overflow"
    if 0.01 <= value < 1000:
        return f"{value:.3g}"
    digits, exponent = f"{value:.1e}".split("e")
    return f"${digits}\\times 10^{{{int(exponent)}}}$"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
