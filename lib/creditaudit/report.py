"""Verdicts for people: the terminal table, the data frame behind the appendix, the summary sentence."""

import textwrap
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from creditaudit.claims import Result

WIDTH = 100
VERDICTS = ("reproduced", "contradicted", "inconclusive")
COLUMNS = (39, 18, 26, 12)  # id, published, observed, verdict


@dataclass(frozen=True)
class Summary:
    """How many claims of each verdict, and how many of them luck alone may have got wrong."""

    total: int
    reproduced: int
    contradicted: int
    inconclusive: int
    alpha: float
    tested: int  # those with runs enough for a test; the exact ones need none, hence no luck

    @property
    def expected_false(self) -> float:
        return self.alpha * self.tested

    @property
    def sentence(self) -> str:
        return (
            f"{self.total} claims: {self.reproduced} reproduced, {self.contradicted} contradicted, "
            f"{self.inconclusive} inconclusive. {self.tested} of them had the runs for a test at alpha = "
            f"{self.alpha:g}: expect at most about {self.expected_false:.1f} of these to be decided wrongly by chance."
        )


def summary(results: Iterable["Result"]) -> Summary:
    results = list(results)
    counts = Counter(result.verdict for result in results)
    tested = sum(result.kind != "exact" and result.n > 0 for result in results)
    alpha = results[0].claim.setting.alpha if results else 0.05
    return Summary(len(results), *(counts[name] for name in VERDICTS), alpha, tested)


def table(results: Iterable["Result"]) -> pd.DataFrame:
    """One row per claim, as text ready to print."""
    rows = [
        {
            "section": result.claim.section,
            "set": result.claim.set,
            "id": result.id,
            "claim": result.statement,
            "published": published(result),
            "observed": observed(result),
            "verdict": result.verdict,
            "reason": result.reason,
        }
        for result in results
    ]
    return pd.DataFrame(rows)


def print_table(results: Iterable["Result"]) -> None:
    """Grouped by section and set, at most 100 columns wide; reasons are counted below instead of repeated."""
    results = list(results)
    print(_line("claim", "published", "observed (std, n)", "verdict"))
    for place, group in groupby(results, key=lambda result: result.claim.place):
        print(f"\n{place}")
        for result in group:
            print(_line(result.id, published(result), observed(result), result.verdict))
    reasons = Counter(result.reason for result in results if result.verdict == "inconclusive")
    print("\nInconclusive because:" if reasons else "")
    for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        print(textwrap.fill(f"{count:4d} x {reason}", WIDTH, subsequent_indent=" " * 7))
    print("\n" + textwrap.fill(summary(results).sentence, WIDTH))


def published(result: "Result") -> str:
    """The published value with its std, or the shape in a word."""
    claim = result.claim
    if claim.form == "argmax":
        return f"best at k={claim.expected:.0f}"
    text = number(claim.expected)
    if claim.kind != "effect":
        return f"{text} ± {claim.std:.3f}" if claim.std is not None else text
    if claim.minus is None:
        return f"{'≥' if claim.direction == 'above' else '≤'} {text}"
    return f"{text}-fold" if claim.quantity.log else f"{claim.expected:+.3f}"


def observed(result: "Result") -> str:
    """What our runs gave: mean, std over seeds (decades for norms), n."""
    if result.observed is None:
        return "-"
    text = number(result.observed)
    if result.spread is None:
        return f"{text} (n={result.n})"
    decades = " dec" if result.claim.quantity.log else ""
    return f"{text} ± {result.spread:.3f}{decades} (n={result.n})"


def number(value: Any) -> str:
    """Accuracies and cosines to three decimals, norms to two digits, a long list by its ends."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        shown = [number(item) for item in value]
        return " ".join(shown) if len(shown) <= 3 else f"{shown[0]} .. {shown[-1]}"
    if value != 0 and not 1e-3 <= abs(value) < 100:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.3f}"


def _line(*cells: str) -> str:
    fitted = [_fit(cell, room).ljust(room) for cell, room in zip(cells, COLUMNS, strict=True)]
    return " ".join(fitted).rstrip()


def _fit(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 1] + "…"
