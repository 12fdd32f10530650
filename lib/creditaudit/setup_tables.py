"""The tables of the set-up section, read from the code that trains: recipe, credit rules, and our own choices."""

from dataclasses import fields

import pandas as pd

from creditaudit import data, style
from creditaudit.credit import RULES
from creditaudit.credit.rule import RMS_EPS
from creditaudit.credit.settings import CREDIT_BRIDGE, EQUILIBRIUM, STATE_BRIDGE
from creditaudit.spec import RunSpec


def recipe() -> pd.DataFrame:
    """How every run trains, from the defaults of its spec."""
    spec = RunSpec(method="dfa")
    rows = {
        "data": f"CIFAR-10, pixels normalised by mean {data.MEAN} and std {data.STD}",
        "augmentation": f"random crop after {data.PAD} black pixels on each side, random flip; none at test",
        "optimizer": f"AdamW, learning rate {spec.lr:g}, weight decay {spec.weight_decay:g}, one state per part",
        "schedule": "cosine to zero, once per epoch; no clipping",
        "batch": str(spec.batch),
        "credit": f"local rules: each sample's $a_l$ is divided by its rms (+ {RMS_EPS:g}); BP: as it is",
        "frozen blocks": "no update and no weight decay; embed and readout always train",
        "seeds": "fix weights, feedback matrices, order and augmentation: one seed, one sequence of batches",
    }
    return pd.DataFrame(rows.items(), columns=["what", "how"])


def rules() -> pd.DataFrame:
    """Every method and the vector that drives its block l."""
    rows = [(style.name(m), RULES[m].full_name, RULES[m].formula) for m in style.in_order(RULES)]
    return pd.DataFrame(rows, columns=["method", "in full", "block $l$ is driven by"])


def choices() -> pd.DataFrame:
    """What the study leaves open about the learned rules, what was chosen, and why."""
    rows = [
        (style.name(method), item.name.replace("_", " "), f"{getattr(settings, item.name):g}", item.metadata["why"])
        for method, settings in (("sb", STATE_BRIDGE), ("cb", CREDIT_BRIDGE), ("ep", EQUILIBRIUM))
        for item in fields(settings)
    ]
    return pd.DataFrame(rows, columns=["method", "setting", "value", "what it is, and why"])
