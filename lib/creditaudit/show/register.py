"""The register: published claims with what was tested, what we saw and the verdict, as rows of a table."""

from collections.abc import Sequence

import pandas as pd

from creditaudit.engine import catalogue
from creditaudit.show import display
from creditaudit.study.claimspec import Quantity, Result, Statement, quantities, statements
from creditaudit.study.metrics import METRICS
from creditaudit.study.report import counted, observed, ours, published, test, written

COLUMNS = ["claim", "statement", "place", "published", "test", "ours", "90 % interval", "n", "verdict", "reason"]
COLUMNS += ["runs"]
PREDICTED = (
    "Expectations, committed before the runs, and what became of them. *Seen*: a planning run of other code was "
    "known; *blind*: only the reason in `params/predictions.yaml`. *Test*: the line or margin fixed with it."
)
BRIEF = ["claim", "statement", "published", "test", "ours", "n", "verdict"]  # beside a section's own figures


def show(results: Sequence[Result]) -> None:
    """The count in a line, and a row per claim."""
    if not results:
        display.text("The study published no number about this set.")
        return
    count = f"{len(results)} claim{'s' * (len(results) > 1)}"
    display.text(f"{count}: {counted(results)}. The register, at the end, has them with their intervals.")
    common = ".".join(results[0].id.split(".", 2)[:-1])
    caption = f"The study's claims and their verdicts; ids begin with `{common}.`"
    display.show_table(rows(results)[BRIEF], caption, role="register")


def predictions(results: Sequence[Result], printed: Sequence[str] = ("statement", "verdict")) -> None:
    """Our own predictions, a row each; the PDF has the columns that are `printed`."""
    cells = [
        {
            "statement": result.statement,
            "made": "seen" if result.claim.seen else "blind",
            "expected": published(result),
            "test": test(result.claim),
            "observed": observed(result) if result.n else None,
            "verdict": result.verdict,
        }
        for result in results
    ]
    display.show_table(pd.DataFrame(cells), PREDICTED, printed=list(printed))


def rows(results: Sequence[Result]) -> pd.DataFrame:
    """One line per claim; the id without its section and set, which the table's caption names."""
    cells = [
        {
            "claim": f"`{result.id.split('.', 2)[-1]}`",
            "statement": result.statement
            + (f" *Ours: {ours(result)}.*" if result.claim.form == "all" and result.n else ""),
            "place": result.claim.where,
            "published": published(result),
            "test": test(result.claim),
            "ours": _ours(result) if result.n else None,
            "90 % interval": interval(result),
            "n": result.n or None,
            "verdict": result.verdict,
            "reason": _reason(result),
            "runs": " ".join(f"`{key}`" for key in result.records) or None,
        }
        for result in results
    ]
    return pd.DataFrame(cells, columns=COLUMNS).astype({"n": object})


def keys(results: Sequence[Result]) -> list[dict[str, str]]:
    """Of each row its id, and by what the HTML lets a reader choose rows."""
    asked = [dict.fromkeys(each.method for each in quantities(result.claim) if each.method) for result in results]
    return [
        {
            "id": result.id,
            "section": result.claim.place,
            "method": ", ".join(map(catalogue.label, methods)),
            "verdict": result.verdict,
        }
        for result, methods in zip(results, asked, strict=True)
    ]


def relative(result: Result) -> tuple[float, float] | None:
    """The 90 % interval of ours - published over the margin, of a list its worst entry: inside ±1 is reproduced."""
    if result.kind != "equivalence" or not result.ci:
        return None
    low, high = _worst(result)
    return float(low / result.margin), float(high / result.margin)


def interval(result: Result) -> str | None:
    """The interval that decides: of ours - published (norms: ours / published), of an effect, or of a shape's weakest
    inequality; of a list that of its worst entry."""
    if not result.ci:
        return None
    if result.kind == "equivalence":
        return _written(_worst(result), result.claim.quantity, difference=True)
    lines = statements(result.claim)
    pairs = result.ci if result.kind == "shape" else [result.ci]
    line, ends = min(zip(lines, pairs, strict=True), key=lambda each: _slack(*each))
    name = f"{METRICS[line.quantity.metric].short} " if result.claim.form == "all" else ""  # which of them it is
    return name + _written(ends, line.quantity, difference=line.minus is not None)


def _worst(result: Result) -> tuple[float, float]:
    pairs = result.ci if isinstance(result.ci[0], list) else [result.ci]
    return max(pairs, key=lambda pair: max(abs(bound) for bound in pair))


def _slack(line: Statement, pair: Sequence[float]) -> float:
    """How far the interval's near end lies on the statement's side of its line, in the interval's widths."""
    (low, high), at = pair, line.quantity.compared(line.threshold)
    near = low - at if line.direction == "above" else at - high
    return near / ((high - low) or 1.0)


def _written(ends: Sequence[float], quantity: Quantity, difference: bool) -> str:
    return f"[{', '.join(written(quantity.natural(end), quantity, difference) for end in ends)}]"


def _reason(result: Result) -> str:
    """Of an inconclusive one in two words and the seeds that would decide; else how it was reached."""
    why = result.because
    if why is None:
        return result.reason
    return f"{why.cause}, about {why.seeds} seeds" if why.seeds else why.cause


def _ours(result: Result) -> str:
    """Of several inequalities how many hold for the means: the numbers stand beside the claim's words."""
    if result.claim.form != "all":
        return ours(result)
    signed = [
        value - line.threshold if line.direction == "above" else line.threshold - value
        for line, value in zip(result.claim.all, result.observed, strict=True)
    ]
    return f"{sum(each >= 0 for each in signed)} of {len(signed)} hold"
