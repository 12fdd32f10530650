"""The three diagnostics as rules: their limits, which of them fail, and the verdict in a word.

A number that overflowed, or is not a number, is stored as None: the worst case of D1, and no reference for D2.
"""

import math
from collections.abc import Mapping, Sequence

CHANCE = 0.1  # ten classes, equally frequent
BATCH = 128  # over which D2's gradient is averaged
RHO_EPS, RHO_RELATIVE_EPS = 1e-3, 1e-5  # rho's step: the study's, and ours, a fraction of the state's norm
D1_LIMIT = 50.0  # growth over one block above which D1 fails
D2_FLOOR = 1e-7  # |g_L| below which D2 fails
STABILITY_DRIFT = 0.30  # the study's reading of a side product: one gradient direction shared by all batches
D3_GAIN = 0.02  # accuracy over the frozen network that D3 asks for


def scale_is_stable(growth: float | None) -> bool:
    return growth is not None and growth <= D1_LIMIT


def reference_is_valid(g_last: float | None) -> bool:
    return g_last is not None and g_last >= D2_FLOOR


def depth_is_used(gain: float | None) -> bool | None:
    """None where the frozen network's accuracy is not known."""
    return None if gain is None else round(gain, 9) >= D3_GAIN  # .57 - .55 is a little less than .02 in floats


def largest(values: Sequence[float]) -> float:
    """Not a number if any is; Python's max would hide it."""
    return math.nan if any(map(math.isnan, values)) else max(values)


def judged(growth: float | None, g_last: float | None, gain: float | None = None) -> dict[str, bool | None]:
    """Which diagnostics pass; None is what was not measured."""
    return {"D1": scale_is_stable(growth), "D2": reference_is_valid(g_last), "D3": depth_is_used(gain)}


def verdict(passes: Mapping[str, bool | None]) -> str:
    """PASS, or FAIL(D1+D2) and so on, and which are open."""
    failed, passed, unknown = ("+".join(n for n, each in passes.items() if each is w) for w in (False, True, None))
    known = f"FAIL({failed})" if failed else f"PASS({passed})" if passed and unknown else "PASS" if passed else ""
    return ", ".join(filter(None, [known, unknown and f"{unknown} open"]))
