"""Verdicts for people: the terminal table, the counts by section, and numbers as a claim's metric is written."""

import textwrap
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import pandas as pd

from creditaudit.engine import catalogue
from creditaudit.study.claimspec import Claim, Quantity, Result, Statement, statements
from creditaudit.study.metrics import METRICS
from creditaudit.study.numbers import UNBROKEN, digits, factor, fixed
from creditaudit.study.verdicts import VERDICTS

WIDTH = 100
_SIGNS = {"above": "≥", "below": "≤"}
COLUMNS = (39, 18, 26, 12)  # id, published, observed, verdict


def summary(results: Iterable[Result]) -> SimpleNamespace:
    """How many claims of each verdict, and of how many of them luck alone may have got `alpha` wrong."""
    results = list(results)
    tested = [result for result in results if result.kind != "exact" and result.n > 0]  # the exact ones need no runs
    bare = [result for result in tested if result.kind == "equivalence" and result.claim.std is None]
    counts = {name: sum(result.verdict == name for result in results) for name in VERDICTS}
    alpha = results[0].claim.setting.alpha if results else 0.05
    return SimpleNamespace(total=len(results), **counts, alpha=alpha, tested=len(tested), bare=len(bare))


def counted(results: Iterable[Result]) -> str:
    """3 reproduced, 1 contradicted, 2 inconclusive."""
    counts = Counter(result.verdict for result in results)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)


def counts(results: Iterable[Result]) -> pd.DataFrame:
    """How many claims of each section and set got which verdict, and how many in all."""
    frame = pd.DataFrame(
        [(result.claim.section.replace("_", " "), f"`{result.claim.set}`", result.verdict) for result in results],
        columns=["section", "set", "verdict"],
    )
    table = pd.crosstab([frame.section, frame.set], frame.verdict).reindex(columns=list(VERDICTS), fill_value=0)
    table = table.reindex(list(dict.fromkeys(zip(frame.section, frame.set, strict=True))))  # in the claims' order
    table.insert(0, "claims", table.sum(axis=1))
    table.loc[("all", ""), :] = table.sum()
    return table.astype(int).reset_index().rename_axis(columns=None)


def print_table(results: Iterable[Result]) -> None:
    """Grouped by section and set, at most 100 columns wide; reasons are counted below instead of repeated.

    What only another profile can decide is a line, not a table of dashes."""
    everything = list(results)
    results = [result for result in everything if not result.elsewhere]
    print(_line("claim", "published", "observed (std, n)", "verdict"))
    for place, group in groupby(results, key=lambda result: result.claim.place):
        print(f"\n{place}")
        for result in group:
            print(_line(result.id, published(result), observed(result), result.verdict))
    reasons = Counter(result.reason for result in results if result.verdict == "inconclusive")
    print("\nInconclusive because:" if reasons else "")
    for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        print(textwrap.fill(f"{count:4d} x {reason}", WIDTH, subsequent_indent=" " * 7))
    found = summary(results)
    told = (
        f"{found.total} claims: {counted(results)}. {found.tested} of them had the runs for a test at alpha = "
        f"{found.alpha:g}: up to about {found.alpha * found.tested:.1f} wrong verdicts among them would be no "
        f"surprise, perhaps more, because {found.bare} published means come without a std and are taken as exact."
    )
    print("\n" + textwrap.fill(told, WIDTH))
    if others := len(everything) - len(results):
        print(f"{others} more claims need the epochs and seeds of profile paper: see paper/appendix.html.")


def published(result: Result) -> str:
    """The published value with its std, or the shape in a word."""
    claim = result.claim
    if claim.printed:
        return claim.printed
    if claim.form == "argmax":
        return f"best at k={claim.expected:.0f}"
    if claim.kind == "effect":
        sign = "" if claim.minus else f"{_SIGNS[claim.direction]} "
        return sign + _size(claim.expected, claim.quantity, claim.minus)
    text = claim.expected if claim.quantity is None else written(claim.expected, claim.quantity)
    return f"{text} {scatter(claim.std, claim.quantity)}" if claim.std is not None else text


def test(claim: Claim) -> str:
    """What our runs must show: within a margin of the published value, beyond a line, or a shape."""
    if claim.kind in ("equivalence", "exact"):
        return factor(claim.margin) if claim.quantity.log else f"±{claim.margin:g}"
    lines = statements(claim)
    if claim.kind == "shape" and len(lines) > 1:
        return f"all{UNBROKEN}of{UNBROKEN}{len(lines)}" if claim.form == "all" else "shape"
    (line,) = lines
    return f"{_SIGNS[line.direction]}{UNBROKEN}{_size(line.threshold, line.quantity, line.minus)}"


test.__test__ = False  # pytest: this is no test


def _size(value: float, quantity: Quantity, minus: Quantity | None) -> str:
    """Of an effect, or of a line; of a difference of norms the factor."""
    difference = minus is not None
    return (
        f"{written(value, quantity, difference and not quantity.log)}{'-fold' if difference and quantity.log else ''}"
    )


def observed(result: Result) -> str:
    """What our runs gave: mean, std over seeds (of norms a factor), n."""
    return "-" if result.observed is None else f"{ours(result)} (n={result.n})"


def ours(result: Result) -> str:
    """The same without n."""
    claim = result.claim
    if claim.form == "all":
        parts = (_part(line, value) for line, value in zip(claim.all, result.observed, strict=True))
        return "; ".join(dict.fromkeys(parts))  # two lines may bound one number
    text = written(result.observed, claim.quantity, claim.minus is not None and not claim.quantity.log)
    return text if result.spread is None else f"{text} {scatter(result.spread, claim.quantity)}"


def _part(line: Statement, value: float) -> str:
    """One inequality of several, with the name of what it is about."""
    text = f"{METRICS[line.quantity.metric].short} {written(value, line.quantity, line.minus is not None)}"
    return text if line.minus is None else f"{text} against {_other(line.quantity, line.minus)}"


def _other(one: Quantity, other: Quantity) -> str:
    """In what a quantity differs from the one that it is subtracted from."""
    differ = {name for name in Quantity.model_fields if getattr(one, name) != getattr(other, name)}
    words = [catalogue.label(other.method)] if "method" in differ else []
    words += ["frozen" if other.k == 0 else f"k={other.k}"] if "k" in differ else []
    words += [METRICS[other.metric].short] if "metric" in differ else []
    words += [f"normalised: {other.normalise or 'as the study does'}"] if "normalise" in differ else []
    words += ["ours"] if differ & {"settings", "decay", "rms_eps"} else []
    words += [f"{name} {getattr(other, name)}" for name in ("depth", "penalty", "epochs") if name in differ]
    return " ".join(words) or "the other"


def scatter(value: float, quantity: Quantity) -> str:
    """A std over seeds, to stand behind the mean."""
    return factor(value) if quantity.log else f"± {value:.{METRICS[quantity.metric].places}f}"


def written(value: Any, quantity: Quantity, difference: bool = False) -> str:
    """A number as its metric is written; a difference with its sign, of norms as a ratio; a long list by its ends."""
    if isinstance(value, list):
        shown = [written(item, quantity) for item in value]
        return " ".join(shown) if len(shown) <= 3 else f"{shown[0]} .. {shown[-1]}"
    if isinstance(value, str):
        return value
    if quantity.log:
        return f"{'×' if difference else ''}{digits(value)}"
    return fixed(value, METRICS[quantity.metric].places, signed=difference)


def _line(*cells: str) -> str:
    fitted = [cell if len(cell) <= room else f"{cell[: room - 1]}…" for cell, room in zip(cells, COLUMNS, strict=True)]
    return " ".join(cell.ljust(room) for cell, room in zip(fitted, COLUMNS, strict=True)).rstrip()
