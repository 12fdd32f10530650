"""A claim and what our runs say of it."""

from dataclasses import dataclass, field, fields
from typing import Any

from creditaudit.study.claimspec import Claim
from creditaudit.study.verdicts import Reason, Verdict


@dataclass(frozen=True)
class Result:
    """One line of claims.json, plus what only the tables need."""

    id: str
    statement: str
    kind: str
    expected: Any
    margin: float | None
    observed: Any
    ci: Any
    n: int
    verdict: Verdict
    reason: str
    command: str
    claim: Claim = field(repr=False, compare=False)
    spread: float | None = None  # std over our seeds, in the margin's units
    because: Reason | None = None  # of an inconclusive one, what `reason` says in words
    records: tuple[str, ...] = ()  # keys of the runs that were read; an exact claim rests on identity.json
    commits: tuple[str, ...] = ()  # at which they were trained
    all_seeds: "Result | None" = None  # the same claim on every seed there is, where there are more than the study's

    @property
    def elsewhere(self) -> bool:
        """Does it ask for epochs or seeds that only another profile has?"""
        return self.because is not None and self.because.cause == "another profile"

    def to_json(self) -> dict[str, Any]:
        names = [item.name for item in fields(self) if item.name not in ("claim", "spread", "because", "all_seeds")]
        body = self._written(names) | {"cause": self.because and self.because.cause}
        if self.all_seeds:
            body["all_seeds"] = self.all_seeds._written(["observed", "ci", "n", "verdict", "reason", "records"])
        return body

    def _written(self, names: list[str]) -> dict[str, Any]:
        return {name: _rounded(getattr(self, name)) for name in names}


def _rounded(value: Any) -> Any:
    """Six significant digits: the same bytes for the same records, on any machine."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value
