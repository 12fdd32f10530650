"""Credit rules: a method only says *which vector drives each block, and the embed*.

To add one: write a class with the `Rule` interface here, add it to `RULES`, its name to `spec.Method` and its look to
`style.LOOKS`. A test fails where one of the three is forgotten.
"""

from creditaudit.credit.bp import BackPropagation
from creditaudit.credit.credit_bridge import CreditBridge
from creditaudit.credit.dfa import DirectFeedback
from creditaudit.credit.ep import EquilibriumPropagation
from creditaudit.credit.fa import FeedbackAlignment
from creditaudit.credit.rule import Rule
from creditaudit.credit.state_bridge import StateBridge

RULES: dict[str, type[Rule]] = {
    "bp": BackPropagation,
    "fa": FeedbackAlignment,
    "dfa": DirectFeedback,
    "sb": StateBridge,
    "cb": CreditBridge,
    "ep": EquilibriumPropagation,
}

__all__ = ["RULES", "BackPropagation", "Rule"]
