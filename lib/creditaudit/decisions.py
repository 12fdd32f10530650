"""What one would have concluded from each way of looking: the decision-utility table.

The question is always the same: *does this method's credit make good use of the blocks?* Every criterion answers
it from one run, with the rule written beside it in words; the table sets the answers side by side. Accuracy
and cosine are read as they usually are, against chance and against credit that knows nothing. D1 to D3 are the study's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from creditaudit import diagnosis, style
from creditaudit.diagnosis import D1_LIMIT, D2_FLOOR, D3_GAIN
from creditaudit.diagnostics import BATCH
from creditaudit.metrics import gain, read
from creditaudit.records import Record
from creditaudit.report import digits
from creditaudit.spreads import as_table

ABOVE_CHANCE = 2.0  # times chance: what "it learns" usually means
ABOVE_NULL = 3.0  # standard deviations above credit that knows nothing: what "it aligns" usually means

Answer = bool | None  # None: the run that would answer is missing, or seeds are split
Pair = tuple[Record, Record | None]  # a run and its frozen twin (k = 0)


@dataclass(frozen=True)
class Criterion:
    """One way of looking at a run, and the rule by which it says yes."""

    name: str
    rule: str  # markdown
    answer: Callable[[Record, Record | None], Answer]


def learns(record: Record, frozen: Record | None = None) -> bool:
    return record.final["test_accuracy"] >= ABOVE_CHANCE * style.CHANCE


def learns_and_aligns(record: Record, frozen: Record | None = None) -> bool:
    """Gamma as usually reported, averaged over *all* blocks, FA's exact last one too. An undefined mean is none."""
    gamma = read("gamma", record)
    return learns(record) and gamma is not None and gamma > ABOVE_NULL * ignorance(record)


def ignorance(record: Record) -> float:
    """Std of Gamma for credit that knows nothing but, like real credit, is alike for all samples.

    Measured with fresh feedback matrices where a method has them: over the deep blocks that such a matrix drives, fewer
    than Gamma averages, so it is if anything too wide. Else one random direction for all samples: 1/sqrt(d) for a
    block, independent between blocks. (A random direction per *sample* averages out to a far smaller null.)
    """
    fresh = (record.final.get("fresh_null") or {}).get("std")
    return fresh or one_direction(record)


def one_direction(record: Record) -> float:
    """Std of Gamma for one random direction per block: 1/sqrt(dL)."""
    return (record.spec.width * record.spec.depth) ** -0.5


def scale_is_stable(record: Record, frozen: Record | None = None) -> bool:
    return diagnosis.scale_is_stable(record.final["growth"])


def reference_is_valid(record: Record, frozen: Record | None = None) -> bool:
    return diagnosis.reference_is_valid(record.final["g_norm"][-1])


def depth_is_used(record: Record, frozen: Record | None) -> Answer:
    return diagnosis.depth_is_used(gain(record, frozen))


def passes(record: Record, frozen: Record | None) -> Answer:
    """All three; a failure of D1 or D2 needs no frozen run."""
    if not (scale_is_stable(record) and reference_is_valid(record)):
        return False
    return depth_is_used(record, frozen)


CRITERIA = (
    Criterion(
        "accuracy", f"test accuracy at least {ABOVE_CHANCE:g} × chance ({ABOVE_CHANCE * style.CHANCE:g})", learns
    ),
    Criterion(
        "accuracy + cosine",
        f"the same, and $\\Gamma$ over all blocks more than {ABOVE_NULL:g} std above credit that knows nothing "
        "(fresh feedback matrices, over the blocks behind the first; $1/\\sqrt{dL}$ where a method has none)",
        learns_and_aligns,
    ),
    Criterion("D1", f"no block grows the stream more than {D1_LIMIT:g}-fold", scale_is_stable),
    Criterion("D2", f"$\\lVert g_L \\rVert$ at least {digits(D2_FLOOR)}, batches of {BATCH}", reference_is_valid),
    Criterion("D3", f"at least {100 * D3_GAIN:g} pp above the same method with frozen blocks", depth_is_used),
    Criterion("D1–D3", "all three", passes),
)
USUAL, TOGETHER = "accuracy + cosine", "D1–D3"


def rules() -> pd.DataFrame:
    """The decision rules in words."""
    return pd.DataFrame([{"looking at": c.name, "“uses its blocks” if": c.rule} for c in CRITERIA])


def answers(pairs: Sequence[Pair]) -> pd.DataFrame:
    """Tidy: one row per run and criterion, `says` is True, False or None."""
    rows = [
        {"method": record.spec.method, "seed": record.spec.seed, "criterion": c.name, "says": c.answer(record, frozen)}
        for record, frozen in pairs
        for c in CRITERIA
    ]
    return pd.DataFrame(rows, columns=["method", "seed", "criterion", "says"])


def table(pairs: Sequence[Pair]) -> pd.DataFrame:
    """One row per method in the order given, one column per criterion: yes or no, in how many seeds."""
    tidy, rows = answers(pairs), []
    for method in dict.fromkeys(tidy["method"]):
        said = {c.name: _said(tidy, method, c.name) for c in CRITERIA}
        row = {"method": style.name(method)} | {name: _votes(each) for name, each in said.items()}
        rows.append(row | {"so the usual reading": _lesson(said[USUAL], said[TOGETHER])})
    return as_table(rows)


def conclusions(pairs: Sequence[Pair], criterion: str) -> dict[str, Answer]:
    """method -> what most seeds say; None where they are split or too many cannot say."""
    return {method: majority(said) for method, said in votes(pairs, criterion).items()}


def votes(pairs: Sequence[Pair], criterion: str) -> dict[str, list[Answer]]:
    """method -> what each seed says."""
    tidy = answers(pairs)
    return {method: _said(tidy, method, criterion) for method in dict.fromkeys(tidy["method"])}


def misled(pairs: Sequence[Pair]) -> list[str]:
    """Methods that accuracy and cosine would accept, and D1 to D3 refuse."""
    usual, together = conclusions(pairs, USUAL), conclusions(pairs, TOGETHER)
    return [method for method in usual if (usual[method], together[method]) == (True, False)]


def _said(tidy: pd.DataFrame, method: str, criterion: str) -> list[Answer]:
    return list(tidy.loc[(tidy["method"] == method) & (tidy["criterion"] == criterion), "says"])


def majority(said: Sequence[Answer]) -> Answer:
    """What more than half of the seeds say, those that cannot say counted in."""
    return next((answer for answer in (True, False) if 2 * list(said).count(answer) > len(said)), None)


def _votes(said: list[Answer]) -> str:
    most, yes, no = majority(said), said.count(True), said.count(False)
    if most is None and None in said:
        return f"? ({yes} yes, {no} no)" if yes + no else "?"
    answer = {True: "yes", False: "**no**", None: "split"}[most]
    return f"{answer} {max(yes, no)}/{len(said)}"


def _lesson(usual: list[Answer], together: list[Answer]) -> str:
    verdict = majority(usual), majority(together)
    if None in verdict:
        return "undecided"
    return {
        (True, True): "agrees: accept",
        (False, False): "agrees: refuse",
        (True, False): "**is misled**",
        (False, True): "is too strict",
    }[verdict]
