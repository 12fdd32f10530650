"""Credit rules: a method only says *which vector drives each block, and the embed*.

Adding a rule touches this folder only: write a class with the `Rule` interface, add it to `RULES`.
"""

from creditaudit.credit.bp import BackPropagation
from creditaudit.credit.dfa import DirectFeedback
from creditaudit.credit.fa import FeedbackAlignment
from creditaudit.credit.rule import Rule

RULES: dict[str, type[Rule]] = {"bp": BackPropagation, "fa": FeedbackAlignment, "dfa": DirectFeedback}

__all__ = ["RULES", "BackPropagation", "Rule"]
