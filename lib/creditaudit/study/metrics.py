"""What a claim or a table may ask of a run: one name, one number (or one number per layer).

`METRICS` is the whole list; claims.yaml, the tables and the figures all read records through it, so a name
means the same everywhere. Layers are 0..L for states (h_0 is the embed's output) and 0..L-1 for blocks.

Norms and growth spread over twenty decades: they are *stated* in natural units and *compared* in log10. Two
conventions of |g| exist and differ eightfold. `g_norm` is the audit's, a mean cross-entropy over batches of
128; `g_norm_1024` and everything over epochs is the trajectories', one batch of 1024.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from creditaudit.measure import rules
from creditaudit.runs.records import Record

Value = float | list[float] | None  # None: not finite, or not measured in this run


@dataclass(frozen=True)
class Metric:
    """How to read one number from a record (or, for `identity`, from a row of identity.json)."""

    about: str
    read: Callable[..., Value]
    log: bool = False  # compared in log10
    layer: str | None = None  # "state" or "block" where a layer must be named
    source: str = "run"  # or "identity"
    places: int = 3  # decimals, where it is not compared in log10
    called: str = ""  # where a table names it; else by its own name

    @property
    def short(self) -> str:
        return self.called or self.about


def read(name: str, record: Record, layer: int | None = None) -> Value:
    """One metric of one run, in natural units."""
    metric = METRICS[name]
    return metric.read(record, layer) if metric.layer else metric.read(record)


def verdict(record: Record, frozen: Record | None) -> str:
    """PASS, or FAIL(D1+D2) and so on; `frozen` is the k = 0 run that D3 subtracts."""
    return rules.verdict(rules.judged(record.final["growth"], record.final["g_norm"][-1], gain(record, frozen)))


def gain(record: Record, frozen: Record | None) -> float | None:
    """D3's statistic."""
    return None if frozen is None else record.final["test_accuracy"] - frozen.final["test_accuracy"]


def first_failure(values: list[float | None], passes: Callable[[float | None], bool]) -> int:
    """The first epoch, counted from 1, at which a diagnostic fails; one past the last where it never does."""
    return next((epoch for epoch, value in enumerate(values, 1) if not passes(value)), len(values) + 1)


def growth_by_epoch(record: Record) -> list[float | None]:
    """D1's statistic, the largest ratio of consecutive median norms, after each epoch."""
    return [growth(norms) for norms in record.epochs["h_norm"]]


def g_last_by_epoch(record: Record) -> list[float | None]:
    """|g_L| after each epoch, batch 1024."""
    return [norms[-1] for norms in record.epochs["g_norm"]]


def growth(norms: list[float | None]) -> float | None:
    """Over one block at most; None where a norm overflowed or one that is divided by is nought."""
    if None in norms or 0 in norms[:-1]:
        return None
    return max(after / before for before, after in pairwise(norms))


def _mean(values: list[float | None]) -> float | None:
    return None if not values or None in values else float(np.mean(values))


def _mean_of(name: str, first: int = 0) -> Callable[[Record], float | None]:
    return lambda record: _mean(record.final[name][first:])


def _last_mean(name: str) -> Callable[[Record], float | None]:
    """After the last epoch, over the blocks (the embed stands first); records older than the log have none."""
    return lambda record: _mean((record.epochs.get(name) or [[]])[-1][1:])


def _chosen(choose: Callable[[list], float], values: list[float | None]) -> float | None:
    """From values that are all defined."""
    return None if None in values else choose(values)


def _state_error_fall(record: Record) -> float | None:
    errors = record.epochs.get("state_error")
    return errors[-1] / errors[0] if errors and errors[0] and errors[-1] is not None else None


def _state_errors(record: Record) -> list[float | None]:
    """After the last epoch, one for each state that predicts h_L."""
    return (record.epochs.get("state_error_layers") or [[None]])[-1]


def _h_times_g(record: Record) -> float | None:
    h, g = record.final["h_norm"][-1], record.final["g_norm"][-1]
    return None if h is None or g is None else h * g


METRICS: dict[str, Metric] = {
    "test_accuracy": Metric("accuracy after the last epoch", lambda r: r.final["test_accuracy"], called="accuracy"),
    "h_norm": Metric(
        "median ||h_l||", lambda r, l: r.final["h_norm"][l], log=True, layer="state", called="state norm"),
    "g_norm": Metric(
        "median ||dCE/dh_l||, batches of 128",
        lambda r, l: r.final["g_norm"][l], log=True, layer="state", called="last gradient"),
    "g_norms": Metric("the same at every layer", lambda r: r.final["g_norm"], log=True),
    "g_norm_1024": Metric(
        "median ||dCE/dh_l|| after the last epoch, batch 1024",
        lambda r, l: r.epochs["g_norm"][-1][l], log=True, layer="state"),
    "h_times_g": Metric("||h_L|| ||dCE/dh_L||: what a LayerNorm keeps when the scale changes", _h_times_g, log=True),
    "growth": Metric(
        "D1: max over l of median ||h_l+1|| / median ||h_l||", lambda r: r.final["growth"], log=True, called="growth"),
    "growth_peak": Metric(
        "its maximum over epochs", lambda r: _chosen(max, growth_by_epoch(r)), log=True, called="largest growth"),
    "g_lowest": Metric(
        "minimum over epochs of |g_L|, batch 1024",
        lambda r: _chosen(min, g_last_by_epoch(r)), log=True, called="smallest gradient"),
    "first_d1": Metric(
        "first epoch at which D1 fails",
        lambda r: first_failure(growth_by_epoch(r), rules.scale_is_stable), places=1, called="D1 first fails"),
    "first_d2": Metric(
        "first epoch at which D2 fails, batch 1024",
        lambda r: first_failure(g_last_by_epoch(r), rules.reference_is_valid), places=1, called="D2 first fails"),
    "gamma": Metric(
        "Gamma: cosine with g at the block's input, mean over blocks", _mean_of("gamma_in"), called="cosine"),
    "gamma_deep": Metric("the same without block 0", _mean_of("gamma_in", first=1), called="deep cosine"),
    "gamma_at": Metric("Gamma_l", lambda r, l: r.final["gamma_in"][l], layer="block"),
    "gamma_out": Metric("the same cosine with g at the block's output, mean over blocks", _mean_of("gamma_out")),
    "gamma_clamped": Metric(
        "Gamma with both norms clamped at 1e-8, as F.cosine_similarity does it: what small gradients then seem to be",
        _mean_of("gamma_in_clamped")),
    "ceiling_deep": Metric(
        "exact credit's own Gamma, without block 0: how little the gradient turns", _mean_of("gamma_ceiling", first=1)),
    "rho": Metric("rho, mean over blocks, float64", _mean_of("rho_in")),
    "rho_deep": Metric("the same without block 0", _mean_of("rho_in", first=1)),
    "rho_out": Metric("the same at the block's output, mean over blocks", _mean_of("rho_out")),
    "rho_scaled_deep": Metric("that with a step that grows with the state", _mean_of("rho_scaled_in", first=1)),
    "nudge": Metric(
        "loss change under a nudge, eta .01, mean over blocks", lambda r: _mean(r.final["nudge_in"]["0.01"])),
    "stability": Metric(
        "cosine between batches of the mean gradient direction at layer L/2", lambda r: r.final["stability"]),
    "fresh_null": Metric(
        "Gamma with feedback matrices never trained against", lambda r: (r.final["fresh_null"] or {}).get("mean")),
    "fresh_null_std": Metric(
        "its std over draws, over the blocks behind the first", lambda r: (r.final["fresh_null"] or {}).get("std")),
    "state_error_fall": Metric(
        "State Bridge: last state error over the first", _state_error_fall, log=True, called="state error, last/first"),
    "state_error_first": Metric(
        "State Bridge: last error from h_0", lambda r: _chosen(lambda errors: errors[0], _state_errors(r)), log=True),
    "state_error_later": Metric(
        "State Bridge: largest last error from a later state",
        lambda r: _chosen(lambda errors: max(errors[1:], default=errors[0]), _state_errors(r)), log=True),
    "credit_fitted": Metric(
        "share of raw credit from the best-fitted quarter of samples, mean over blocks", _last_mean("credit_fitted"),
        called="best-fitted quarter's share of the credit"),
    "drive_fitted": Metric(
        "the same of the vector that trains, after the normalisation", _last_mean("drive_fitted"),
        called="best-fitted quarter's share of the drive"),
    "credit_common": Metric(
        "part of the raw credit that all samples share, mean over blocks", _last_mean("credit_common"), log=True,
        called="shared part of the credit"),
    "drive_common": Metric(
        "the same of the vector that trains, after the normalisation", _last_mean("drive_common"), log=True,
        called="shared part of the drive"),
    "state_common": Metric(
        "part of h_l that all samples share",
        lambda r, l: (r.epochs.get("state_common") or [[None] * (l + 1)])[-1][l], layer="state"),
    "identity_ratio": Metric(
        "||f_l|| / ||h_l||, mean over blocks", lambda row: _mean(row["block_ratio"]), source="identity"),
    "identity_deviation": Metric("||h_L - h_0|| / ||h_0||", lambda row: row["deviation"], source="identity"),
    "identity_cosine": Metric("cos(h_L, h_0)", lambda row: row["cosine"], source="identity"),
    "identity_row": Metric(
        "block ratios, deviation, cosine",
        lambda row: [*row["block_ratio"], row["deviation"], row["cosine"]], source="identity"),
}  # fmt: skip
