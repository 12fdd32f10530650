"""The tables of the audit: one row per run on disk, one row per method on the page.

Two frozen networks can be subtracted in D3: the method's own, and DFA's, which the study subtracts for every
method. Both stand in the table; the verdict uses the method's own.
"""

from collections import Counter
from typing import Any

import pandas as pd

from creditaudit import metrics, style
from creditaudit.collect import COLUMNS, Runs
from creditaudit.decisions import Pair
from creditaudit.diagnosis import OPEN
from creditaudit.records import Record
from creditaudit.spreads import as_table, by_method, spread

STUDY_BASELINE = "dfa"  # whose frozen network the study subtracts for every method


def trained(runs: Runs) -> Runs:
    """The audited networks, without their frozen twins."""
    return runs.only(k=[spec.depth for spec in runs.specs])


def pairs(runs: Runs) -> list[Pair]:
    """Every audited run with its frozen twin, or None; in the order of all tables."""
    order = style.in_order(record.spec.method for record in runs.records)
    records = sorted(trained(runs).records, key=lambda record: order.index(record.spec.method))
    return [(record, runs.frozen_twin(record)) for record in records]


def trajectories(runs: Runs) -> pd.DataFrame:
    """One row per audited run and epoch; norms and growth on one batch of 1024."""
    full = trained(runs)
    frame = full.by_epoch(
        train="train_accuracy",
        test="test_accuracy",
        h_last=("h_norm", "L"),
        g_last=("g_norm", "L"),
        state_error="state_error",
        state_error_layers="state_error_layers",
        credit_resolution="credit_resolution",
    )
    growth = [value for record in full.records for value in metrics.growth_by_epoch(record)]
    return frame.assign(growth=pd.Series(growth, dtype=float))


def blocks(runs: Runs) -> pd.DataFrame:
    """One row per audited run and block."""
    return trained(runs).by_layer(
        gamma="gamma_in",
        gamma_out="gamma_out",
        gamma_clamped="gamma_in_clamped",
        undefined="gamma_undefined",
        ceiling="gamma_ceiling",
        rho="rho_in",
        rho_scaled="rho_scaled_in",
        nudge=("nudge_in", "0.01"),
        drift="drift",
    )


def per_run(runs: Runs) -> pd.DataFrame:
    """One row per audited run: final numbers, both gains, verdicts, first failures."""
    rows = [_row(record, frozen, _study_twin(runs, record)) for record, frozen in pairs(runs)]
    return pd.DataFrame(rows, columns=[*COLUMNS, *_NUMBERS])


_METRICS = ("gamma", "gamma_deep", "rho", "rho_deep", "nudge", "fresh_null", "first_d1", "first_d2")
_NUMBERS = (
    "accuracy", "h_last", "growth", "g_last", "g_last_per_sample", "stability", *_METRICS,
    "gain", "gain_dfa", "verdict", "verdict_dfa",
)  # fmt: skip


def _row(record: Record, frozen: Record | None, study: Record | None) -> dict[str, Any]:
    final = record.final
    return {
        **{name: getattr(record.spec, name) for name in COLUMNS},
        **{name: metrics.read(name, record) for name in _METRICS},
        "accuracy": final["test_accuracy"],
        "h_last": final["h_norm"][-1],
        "growth": final["growth"],
        "g_last": final["g_norm"][-1],
        "g_last_per_sample": final["g_norm_per_sample"][-1],
        "stability": final["stability"],
        "gain": _points(metrics.gain(record, frozen)),
        "gain_dfa": _points(metrics.gain(record, study)),
        "verdict": metrics.verdict(record, frozen),
        "verdict_dfa": metrics.verdict(record, study),
    }


def _study_twin(runs: Runs, record: Record) -> Record | None:
    twin = record.spec.frozen().but(method=STUDY_BASELINE)
    return next((other for other in runs.records if other.spec == twin), None)


def _points(gain: float | None) -> float | None:
    return None if gain is None else 100 * gain


def verdict_table(rows: pd.DataFrame) -> pd.DataFrame:
    """D1, D2, D3 and the verdict, one row per method."""
    return as_table(
        {
            "method": style.name(method),
            "D1 growth": spread(own, "growth", log=True),
            r"D2 $\lVert g_L \rVert$": spread(own, "g_last", log=True),
            "per sample": spread(own, "g_last_per_sample", log=True),
            "accuracy": spread(own, "accuracy"),
            "D3 gain": spread(own, "gain", places=1, signed=True),
            "over DFA's": spread(own, "gain_dfa", places=1, signed=True),
            "verdict": _tally(own),
        }
        for method, own in by_method(rows)
    )


def _tally(own: pd.DataFrame) -> str:
    """FAIL(D1+D2), with counts where seeds differ; and, where the study's baseline would change it, that too."""
    text = _counted(own.verdict)
    other = _counted(own.verdict_dfa)
    return text if other == text or OPEN in other else f"{text}; with DFA's frozen run {other}"


def _counted(verdicts: pd.Series) -> str:
    counts = Counter(verdicts).most_common()
    if len(counts) == 1:
        return counts[0][0]
    return " / ".join(f"{verdict} {count} of {len(verdicts)}" for verdict, count in counts)


def first_failures(rows: pd.DataFrame) -> pd.DataFrame:
    """The epoch at which D1 and D2 first fail, seed by seed."""
    return as_table(
        {
            "method": style.name(method),
            "epochs watched": int(own.epochs.iloc[0]),
            "seeds": " / ".join(map(str, own.sort_values("seed").seed)),
            "D1 first fails at epoch": _epochs(own, "first_d1"),
            "D2 first fails at epoch": _epochs(own, "first_d2"),
        }
        for method, own in by_method(rows)
    )


def _epochs(own: pd.DataFrame, column: str) -> str:
    runs = own.sort_values("seed")
    texts = [
        "never" if first > last else str(int(first)) for first, last in zip(runs[column], runs.epochs, strict=True)
    ]
    return texts[0] if set(texts) == {"never"} else " / ".join(texts)


def null_band(runs: Runs) -> float:
    """Std of a block's cosine for credit that knows nothing but, like real credit, is alike for all samples."""
    return runs.specs[0].width ** -0.5


def _over_blocks(values: pd.Series) -> float:
    """A mean over blocks is undefined where one of them is, as in every other table."""
    return values.astype(float).mean(skipna=False)


def conventions(runs: Runs) -> pd.DataFrame:
    """The same credit, four ways of taking its cosine and two of rho, averaged over blocks; undefined ones counted."""
    rows = []
    samples = max((record.final["gamma_samples"] for record in runs.records), default=0)
    for method, own in by_method(blocks(runs)):
        run = own.groupby("seed")
        means = run[["gamma", "gamma_out", "gamma_clamped", "ceiling", "rho", "rho_scaled"]].agg(_over_blocks)
        undefined, cosines = int(own.undefined.sum()), samples * len(own)
        rows.append(
            {
                "method": style.name(method),
                "n": len(means),
                r"$\Gamma$ (input)": spread(means, "gamma"),
                "at the output": spread(means, "gamma_out"),
                "clamped": spread(means, "gamma_clamped"),
                "exact credit": spread(means, "ceiling"),
                "undefined": f"{undefined} of {cosines}",
                r"$\rho$": spread(means, "rho"),
                "scaled step": spread(means, "rho_scaled"),
            }
        )
    return as_table(rows)
