"""The three diagnostics as rules: their limits, which of them fail, and the verdict in a word.

A number that overflowed, or is not a number, is stored as None: the worst case of D1, and no reference for D2.
"""

CHANCE = 0.1  # ten classes, equally frequent
BATCH = 128  # over which D2's gradient is averaged
RHO_EPS, RHO_RELATIVE_EPS = 1e-3, 1e-5  # rho's step: the study's, and ours, a fraction of the state's norm
D1_LIMIT = 50.0  # growth over one block above which D1 fails
D2_FLOOR = 1e-7  # |g_L| below which D2 fails
STABILITY_DRIFT = 0.30  # the study's reading of a side product: one gradient direction shared by all batches
D3_GAIN = 0.02  # accuracy over the frozen network that D3 asks for
OPEN = "D3 open"  # the frozen run is missing


def scale_is_stable(growth: float | None) -> bool:
    return growth is not None and growth <= D1_LIMIT


def reference_is_valid(g_last: float | None) -> bool:
    return g_last is not None and g_last >= D2_FLOOR


def depth_is_used(gain: float | None) -> bool | None:
    """None where the frozen network's accuracy is not known."""
    return None if gain is None else round(gain, 9) >= D3_GAIN  # .57 - .55 is a little less than .02 in floats


def failures(growth: float | None, g_last: float | None, gain: float | None = None) -> list[str]:
    """The diagnostics that fail; what was not measured is not judged."""
    passed = {"D1": scale_is_stable(growth), "D2": reference_is_valid(g_last), "D3": depth_is_used(gain)}
    return [name for name, passes in passed.items() if passes is False]


def verdict(growth: float | None, g_last: float | None, gain: float | None) -> str:
    """PASS, or FAIL(D1+D2) and so on; without a gain, that D3 is open."""
    failed = "+".join(failures(growth, g_last, gain))
    if gain is None:
        return f"FAIL({failed}), {OPEN}" if failed else f"PASS(D1+D2), {OPEN}"
    return f"FAIL({failed})" if failed else "PASS"
