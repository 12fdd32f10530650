"""Numbers as text: one notation for powers, one minus sign, no line that ends inside a number."""

import math

UNBROKEN = "\u00a0"  # a space at which no line ends
MINUS = "\u2212"


def digits(value: float) -> str:
    """Two significant digits: 0.044, 15, 200, 4.2e8."""
    if not math.isfinite(value):
        return "not finite"
    rounded = float(f"{abs(value):.1e}")
    if rounded == 0 or 1e-3 <= rounded < 1000:
        text = f"{rounded:g}"
    else:
        mantissa, exponent = f"{rounded:.1e}".split("e")
        text = f"{mantissa}e{int(exponent)}"
    return f"{MINUS}{text}" if value < 0 else text


def fixed(value: float, places: int, signed: bool = False) -> str:
    """So many decimals; what rounds to zero has no sign."""
    text = f"{value:+.{places}f}"
    if not text.strip("+-0."):
        return text[1:]
    return text.replace("-", MINUS) if signed or value < 0 else text[1:]


def factor(decades: float) -> str:
    """×/÷ 3.2: a distance in log10 as what it multiplies or divides by."""
    times = power(decades)
    return f"×/÷{UNBROKEN}{digits(times) if times >= 1.1 else f'{times:.2f}' if times >= 1.005 else '<1.01'}"


def power(decades: float) -> float:
    """10 ** decades; infinite where that overflows."""
    try:
        return 10.0**decades
    except OverflowError:
        return math.inf
