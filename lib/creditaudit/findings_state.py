"""What State Bridge's error says, in sentences: does a better prediction of the state come with good credit?"""

import math

import numpy as np
import pandas as pd

from creditaudit.report import digits
from creditaudit.spreads import on_shared_seeds, scatter_note
from creditaudit.tables import summarise

ERROR_FALLS = 10.0  # times: from here on State Bridge is said to predict the state, as in the claim at d = 512


def caption(rows: pd.DataFrame, epochs: pd.DataFrame) -> str:
    """The finding, then what is drawn."""
    error = epochs[epochs.method == "sb"].sort_values("epoch")
    shared, where = on_shared_seeds(rows)
    order = list(summarise(shared, ["method"], "accuracy").sort_values("mean").method)
    return (
        f"**{_state_finding(error, order, where)}.** Left, the error "
        r"$\lVert G - h_L \rVert^2 / \lVert h_L \rVert^2$ of the predicted last state, mean over layers (1 is "
        f"predicting zero), one thick line per seed{_by_layer(error)}; right, mean accuracy "
        f"({scatter_note(rows)}), dotted is chance."
    )


def _state_finding(error: pd.DataFrame, order: list[str], seeds: str) -> str:
    """`order`: the methods, from the worst accuracy to the best; `seeds`: a note on whose."""
    falls, later = _falls(error.state_error, error.seed), _fall_from_later_states(error)
    fall = float(np.exp(np.log(falls).mean(skipna=False)))
    place = order.index("sb") + 1
    where = "the worst" if place == 1 else f"number {place} of {len(order)} from the bottom"
    moral = "whether predicting the state would assign credit stays open"
    if len(order) == 1:
        where, moral = "all there is yet", "nothing to compare with"
    elif (falls >= ERROR_FALLS).all() and place == 1:
        moral = "predicting the state is not assigning credit"
    elif (falls >= ERROR_FALLS).all() and set(order[place:]) <= {"bp"}:
        moral = "here the two go together"
    but = f" on average over states (from each but $h_0$ it falls at least {digits(later)}-fold)"
    moved = _moved(fall) + (but if later >= ERROR_FALLS > fall else "")
    return f"State Bridge's error {moved} and its accuracy is {where}{seeds}: {moral}"


def _falls(errors: pd.Series, seeds: pd.Series) -> pd.Series:
    """First epoch's error over the last's, for every seed."""
    return errors.astype(float).groupby(seeds).agg(lambda own: own.iloc[0] / own.iloc[-1])


def _fall_from_later_states(error: pd.DataFrame) -> float:
    """The smallest fall, in any seed, among the predictions from h_1, h_2, ...; 0 where one is unknown."""
    logged = error.dropna(subset=["state_error_layers"])
    if logged.empty:
        return 0.0
    by_state = pd.DataFrame(logged.state_error_layers.tolist(), index=logged.index).iloc[:, 1:]
    falls = [fall for state in by_state for fall in _falls(by_state[state], logged.seed)]
    return min(falls) if falls and all(map(math.isfinite, falls)) else 0.0


def _by_layer(error: pd.DataFrame) -> str:
    """The error at the end for every layer that predicts, where it was logged."""
    last = error[error.epoch == error.epochs].state_error_layers.dropna()
    if last.empty:
        return ""
    means = 10.0 ** np.log10(pd.DataFrame(list(last)).astype(float)).mean()
    ends = ", ".join(digits(value) for value in means)
    return f" (thin, from each state alone; geometric means at the end, from $h_0$, $h_1$, …: {ends})"


def _moved(fall: float) -> str:
    if not math.isfinite(fall):
        return "is not finite throughout"
    if 1 / 1.05 < fall < 1.05:
        return "hardly changes"
    return f"falls {digits(fall)}-fold" if fall >= 1 else f"grows {digits(1 / fall)}-fold"
