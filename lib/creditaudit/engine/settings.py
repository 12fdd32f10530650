"""Everything about the learned rules that the study leaves open, in one place, each with its reason.

Nothing was tuned on test claims: values are those of the study's toy example where it has them, else the plainest
reading of its text; the two choices made with a look at validation say so. The set-up section of the appendix prints
this list. A default changed here changes records: bump `RECIPE` with it. A spec departs from them by name:
`RunSpec(method="ep", settings={"beta": 1.0})`.
"""

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

RECIPE = 1  # bump when the numerics of a run change: every older record then stops matching its spec

Normalise = Literal["sample", "batch", "none"]  # of a rule's credit: each sample's to rms 1, the batch's, not at all

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1, le=1000)]
Fraction = Annotated[float, Field(ge=0, le=1)]


def chosen(value: Any, why: str) -> Any:
    """A setting with its reason, which the set-up section prints beside it."""
    return field(default=value, metadata={"why": why})


@dataclass(frozen=True)
class StateBridgeSettings:
    """G(h_l, t_l, s) -> h_L, an MLP on the raw state; its hidden width is d, so that it is no bottleneck.

    Its loss is the MSE over the batch's mean ||h_L||^2: AdamW ignores the factor, float32 does not (||h|| ~ 1e9).
    """

    layers: Count = chosen(
        3, "linear maps in $G$, as in the value net of the study's toy example; hidden width $d$, no bottleneck"
    )
    predicts: Literal["state", "change", "direction"] = chosen(
        "state", "$h_L$ itself; else its change, $G = h_l + \\mathrm{net}$, or $h_L$ after the LayerNorm"
    )


@dataclass(frozen=True)
class CreditBridgeSettings:
    """V([LN(h_l), time, s]), a scalar.

    The gradient matching and the warm-up were picked on a validation split of the training set, outside this code.
    """

    hidden: Count = chosen(256, "width of $V$'s two hidden layers, the toy example's")
    noise: Positive = chosen(0.1, "std of the copies of $h_{l+1}$, in the units of $h$; the toy example's")
    copies: Count = chosen(8, "noisy copies in the soft-min, the toy example's")
    temperature: Positive = chosen(0.1, "of the soft-min, the toy example's")
    terminal: Positive = chosen(
        1.0,
        "weight of the two losses at $h_L$ against the bridge's 1: value, and gradient matching *relative* to the "
        "gradient's size, chosen on a validation split",
    )
    ema: Fraction = chosen(0.995, "the slow copy keeps this much per step, the toy example's")
    warm_up: Fraction = chosen(
        0.5,
        "fraction of all steps in which DFA drives the blocks; the study explored .05 to .5. Chosen on a validation "
        "split: the one most like DFA",
    )
    matching: Literal["relative", "absolute"] = chosen(
        "relative", "over the gradient's mean square, which shrinks as the stream grows; else the plain squared error"
    )
    waves: Count = chosen(3, "sine and cosine of $\\pi 2^j l/L$, $j$ below this: enough to tell 12 layers apart")


@dataclass(frozen=True)
class EquilibriumSettings:
    """Nudged phase of the energy 1/2 sum ||h_{l+1} - h_l - f_l(h_l)||^2 + beta loss."""

    beta: Positive = chosen(
        0.1, "the nudge: small against the states, yet above float32's resolution while these do not explode"
    )
    sweeps: Count = chosen(
        2, "relaxation sweeps: at init, its worst case, a test holds the credit within 10 % of the fixed point"
    )
    relaxation: Literal["solved", "descent"] = chosen(
        "solved", "residuals down, states up, where descent would arrive; *descent* takes `sweeps` plain gradient steps"
    )
    rate: Positive = chosen(0.5, "of a step of descent; unused where the relaxation is solved")


STRUCTURE = (  # choices that are no number: whose, what, how, and why
    (("sb", "loss", "relative"),
     "the squared error over the batch's $\\lVert h_L \\rVert^2$: AdamW ignores the factor, float32 does not"),
    (("sb", "optimizer", "AdamW"),
     "of its net, and of Credit Bridge's: the run's own learning rate, schedule and weight decay"),
    (("sb", "scale", "per sample"),
     "its credit, Credit Bridge's and EP's is that of each sample's own loss; FA's starts from the mean over the "
     "batch, so the small number in the rms weighs more on it by the size of the batch"),
    (("cb", "transitions", "one each"),
     "each sample of a batch teaches one step $l \\to l+1$: the mean over layers, at a cost that does not grow"),
    (("ep", "energy", "with $h_0$"),
     "$\\lVert h_0 - \\mathrm{embed}(x) \\rVert^2 / 2$ is added, so that the embed has a credit"),
)  # fmt: skip

STATE_BRIDGE, CREDIT_BRIDGE, EQUILIBRIUM = StateBridgeSettings(), CreditBridgeSettings(), EquilibriumSettings()
DEFAULTS = {"sb": STATE_BRIDGE, "cb": CREDIT_BRIDGE, "ep": EQUILIBRIUM}  # by the rule's name
Changes = tuple[tuple[str, Any], ...]


def departures(method: str, changes: Any) -> Changes:
    """Checked, sorted by name, and without those that are as they would be anyway."""
    try:
        changes = dict(changes)
    except (TypeError, ValueError):
        raise ValueError(f"settings are a mapping of names to values, not {changes!r}") from None
    known = asdict(DEFAULTS[method]) if method in DEFAULTS else {}
    for name in changes:
        if name not in known:
            raise ValueError(f"settings: {method} has no {name!r}; it has {', '.join(known) or 'none'}")
    try:
        TypeAdapter(type(DEFAULTS[method])).validate_python(known | changes) if changes else None
    except ValidationError as error:
        problem = error.errors()[0]
        raise ValueError(f"settings: {problem['loc'][0]} = {problem['input']!r}: {problem['msg'].lower()}") from None
    return tuple(sorted((name, value) for name, value in changes.items() if value != known[name]))
