"""What the penalty's records say, in sentences. Numbers, names and verbs come from the records."""

from typing import Any

import pandas as pd

from creditaudit import style
from creditaudit.diagnostics import BATCH, RHO_EPS, RHO_RELATIVE_EPS, TRAJECTORY_BATCH
from creditaudit.findings import HELPS, VERBS, bracketed, helps, listed
from creditaudit.report import digits
from creditaudit.spreads import by_method, named_means, sample_note, scatter_note, spread
from creditaudit.tables_penalty import at, paired, ranking

RHO_DIFFERS = 0.2  # between its two steps, from which on the number is said to hang on the step
NOTHING = "**No run has finished yet.**"


def sweep_table_caption(method: str) -> str:
    return (
        f"{style.name(method)} over $\\lambda$, frozen, and BP to compare with; mean ± std over $n$ seeds (ddof 1; "
        f"of norms geometric, ×/÷). $\\lVert g_L \\rVert$ over batches of {BATCH}, cosine and $\\rho$ over blocks 1 to "
        "$L-1$, and the cosine with feedback matrices never trained against; – where no credit drives the blocks."
    )


def panels_caption(epochs: pd.DataFrame, method: str, rescue: float, seed: int) -> str:
    """Where the curves of the three panels end."""
    if epochs.empty:
        return NOTHING
    last = epochs[epochs.epoch == epochs.epochs]
    without, with_ = (at(last, method=method, penalty=penalty) for penalty in (0.0, rescue))
    lead = f"With $\\lambda={rescue:g}$ {style.name(method)} ends at {_ends(with_)}, without at {_ends(without)}"
    bp, frozen = at(last, method="bp", penalty=0.0), at(last, method=method, k=0)
    depth = int(epochs.depth.iloc[0])
    return (
        f"**{lead}.** BP ends at {_ends(bp)}, the frozen network at accuracy {_value(frozen, 'accuracy')}. Seed {seed} "
        f"alone, hence no error bars; norms are medians over one batch of {TRAJECTORY_BATCH}, gradients at layers "
        f"{depth} (thick, D2's) and {depth // 2} (thin, the one the study plots; unseen where the two "
        "coincide)."
    )


def _ends(run: pd.DataFrame) -> str:
    if run.empty:
        return "(no run yet)"
    norms = f"$\\lVert h_L \\rVert$ = {_value(run, 'h_last')}, $\\lVert g_L \\rVert$ = {_value(run, 'g_last')}"
    return f"{norms}, accuracy {_value(run, 'accuracy')}"


def _value(run: pd.DataFrame, column: str) -> str:
    values = run[column].astype(float).dropna()
    if values.empty:
        return "(no run yet)" if run.empty else "overflow"
    return f"{values.iloc[0]:.3f}" if column == "accuracy" else digits(float(values.iloc[0]))


def sweep_caption(rows: pd.DataFrame, method: str) -> str:
    """The best lambda, against the frozen run."""
    own, frozen = at(rows, method=method), at(rows, method=method, k=0)
    if own.empty:
        return NOTHING
    means = own.groupby("penalty").accuracy.mean()
    best = float(means.idxmax())
    above = spread(paired(at(rows, method=method, penalty=best), frozen), "gain", places=1, signed=True)
    against = f", {above} pp against its frozen network" if above else ""
    return (
        f"**{style.name(method)} is best on average at $\\lambda={best:g}$ with {means.max():.3f}{against}.** The last "
        f"epoch over $\\lambda$ ({scatter_note(own)}; of norms in log10); lines: BP without the penalty (of its "
        "accuracy the number), and each method's own frozen network, same epochs."
    )


def control(rows: pd.DataFrame, rescue: float) -> str:
    """What the penalty does to BP, to which it can bring no rescue."""
    without, with_ = (at(rows, method="bp", penalty=penalty) for penalty in (0.0, rescue))
    change = spread(paired(with_, without), "gain", places=1, signed=True)
    if change is None:
        return "The matched BP control is missing."
    return (
        f"Matched control: the same penalty changes BP from {spread(without, 'accuracy')} to "
        f"{spread(with_, 'accuracy')}, {change} pp ({sample_note(with_)}, {int(with_.epochs.iloc[0])} epochs)."
    )


def direction(rows: pd.DataFrame, method: str, rescue: float) -> str:
    """How much direction comes back: the deep cosine with the penalty, beside its null, BP's and what it is worth."""
    with_, without, frozen = (
        at(rows, method=method, **fields) for fields in ({"penalty": rescue}, {"penalty": 0.0}, {"k": 0})
    )
    gain = paired(with_, frozen).gain.dropna().tolist()
    if without.empty or not gain:
        return f"Whether direction comes back cannot be told: runs of {style.name(method)} are missing."
    before, after, null = (
        spread(own, column) or "undefined"
        for own, column in ((without, "gamma_deep"), (with_, "gamma_deep"), (with_, "fresh_null"))
    )
    exact = spread(at(rows, method="bp", penalty=rescue), "gamma_deep")
    return (
        f"Direction: {style.name(method)}'s deep cosine is {before} without the penalty and {after} with "
        f"$\\lambda={rescue:g}$ ({sample_note(with_)}); with feedback matrices never trained against it is {null}, "
        f"for BP {exact or 'undefined'}. In accuracy, training such blocks {helps(gain)} {style.name(method)} "
        f"({bracketed(gain)}, n = {len(gain)})."
    )


def ranks(rows: pd.DataFrame, rescue: float) -> str:
    """Whether cosine and function put the same method first, and in how many seeds."""
    by_cosine, by_function = (ranking(rows, rescue, column) for column in ("gamma_deep", "accuracy"))
    if len(by_function) < 2:
        have = f"Only {style.name(by_function[0])}" if by_function else "No method but BP"
        return f"{have} has runs with the penalty, so there is nothing to rank yet."
    if set(by_cosine) != set(by_function):
        blind = listed([style.name(method) for method in by_function if method not in by_cosine])
        return f"The deep cosine of {blind} is undefined, so cosine cannot rank what accuracy ranks."
    orders = (
        f"cosine ranks {' > '.join(map(style.name, by_cosine))}, accuracy {' > '.join(map(style.name, by_function))}"
    )
    seeds = sorted(at(rows, penalty=rescue).seed.unique())
    full = [seed for seed in seeds if len(_firsts(rows, rescue, seed, by_cosine)) == 2]
    differ = sum(len(set(_firsts(rows, rescue, seed, by_cosine))) == 2 for seed in full)
    count = f"they put different methods first in {differ} of {len(full)} seeds"
    if by_cosine[0] != by_function[0]:
        return f"**Cosine and function disagree**: under $\\lambda={rescue:g}$ {orders}; {count}."
    return f"Cosine and function agree on the first place: under $\\lambda={rescue:g}$ {orders}; {count}."


def scatter_caption(rows: pd.DataFrame, rescue: float, baseline: str) -> str:
    if rows.empty:
        return NOTHING
    return (
        f"{ranks(rows, rescue)} Accuracy over deep cosine and over $\\rho$, each method without the penalty (hollow) "
        f"and with it (full), means; {scatter_note(rows)}. BP, whose credit is exact, is not ranked. The frozen "
        f"network is {style.name(baseline)}'s."
    )


def methods_caption(rows: pd.DataFrame) -> str:
    return (
        f"Accuracy, deep cosine and deep $\\rho$, with the study's step and with one that grows with the state, "
        f"without and with the penalty; {scatter_note(rows, '±')}. The credit of frozen blocks drives nothing; its "
        "cosine can be taken all the same."
    )


def _firsts(rows: pd.DataFrame, rescue: float, seed: int, methods: list[str]) -> list[str]:
    """The first by cosine and by accuracy in one seed, where all methods have that seed."""
    own = rows[rows.seed == seed]
    orders = [ranking(own, rescue, column) for column in ("gamma_deep", "accuracy")]
    return [order[0] for order in orders if set(order) == set(methods)]


def rescued(rows: pd.DataFrame, rescue: float) -> str:
    """Under which methods training the penalised blocks beats freezing them, by D3's two points."""
    found: dict[str, list[str]] = {}
    for method, own in by_method(rows):
        gain = paired(at(own, penalty=rescue), at(own, k=0)).gain.dropna().tolist()
        if gain and method != "bp":
            found.setdefault(helps(gain), []).append(f"{style.name(method)} ({bracketed(gain)})")
    if not found:
        return "No method but BP has both a penalised and a frozen run yet."
    told = [f"{verb} {listed(found[verb])}" for verb in VERBS if verb in found]
    return (
        f"With $\\lambda={rescue:g}$, training the blocks instead of leaving them frozen {listed(told)} (D3's rule, at "
        f"least {HELPS:g} pp; paired by seed, by the 90 % interval where there are several).{_elsewhere(rows, rescue)}"
    )


def _elsewhere(rows: pd.DataFrame, rescue: float) -> str:
    """Where other penalties reach D3's threshold."""
    swept = at(rows)[lambda own: (own.method != "bp") & ~own.penalty.isin([0.0, rescue])]
    reached, others = [], sorted(swept.penalty.unique())
    for method, own in by_method(swept):
        for penalty in sorted(own.penalty.unique()):
            gain = paired(at(own, penalty=penalty), at(rows, method=method, k=0)).gain.dropna().tolist()
            if gain and helps(gain) == VERBS[0]:
                reached.append(f"{style.name(method)} at $\\lambda={penalty:g}$ ({bracketed(gain)})")
    if not others:
        return ""
    return f" Of the other penalties, training the blocks {VERBS[0]} {listed(reached) or 'nobody'}."


def fragile_rho(rows: pd.DataFrame) -> str:
    """Runs whose rho changes with its step, and whether the step's size can be the reason.

    The second step is a fraction of each sample's own norm. Where that is about the study's step, only the *weights*
    of the samples change, and a correlation that changes with them hangs on a few of them.
    """
    off = at(rows)[lambda own: (own.rho_deep - own.rho_scaled_deep).abs() > RHO_DIFFERS]
    if off.empty:
        return f"No run's deep $\\rho$ changes by more than {RHO_DIFFERS:g} when the step grows with the state."
    ratio = RHO_RELATIVE_EPS * off.h_deep / RHO_EPS
    alike = (ratio > 0.1) & (ratio < 10)
    told = [
        (off[~alike], "the steps differ by more than tenfold, and the study's is the wrong size for the state"),
        (off[alike], "the steps are about the same, so what changes is how samples are weighted: few of them decide"),
    ]
    clauses = [f"in {listed([_two_rhos(run) for run in own.itertuples()])} {why}" for own, why in told if len(own)]
    return (
        f"Deep $\\rho$ changes by more than {RHO_DIFFERS:g} when the step is a fraction of each sample's norm: "
        f"{'; '.join(clauses)}. There $\\rho$ says little."
    )


def _two_rhos(run: Any) -> str:
    rhos = f"{run.rho_deep:.2f} against {run.rho_scaled_deep:.2f}".replace("-", "−")
    return f"{style.name(run.method)}, $\\lambda={run.penalty:g}$, seed {run.seed} ({rhos})"


def sweep_alt(rows: pd.DataFrame, method: str) -> str:
    own = at(rows, method=method)
    points = [f"lambda {p:g}: accuracy {group.accuracy.mean():.3f}" for p, group in own.groupby("penalty")]
    return f"Six panels over lambda: accuracy, norms, growth, cosine, rho. {'; '.join(points) or 'No run yet'}."


def scatter_alt(rows: pd.DataFrame, rescue: float) -> str:
    after = at(rows, penalty=rescue)
    return (
        f"Accuracy against deep cosine and against rho, arrows from no penalty to lambda {rescue:g}. With the penalty, "
        f"cosine: {named_means(after, 'gamma_deep')}; accuracy: {named_means(after, 'accuracy')}."
    )
