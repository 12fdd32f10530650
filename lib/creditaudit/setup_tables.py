"""The tables of the set-up section, read from the code that trains: recipe, credit rules, and our own choices."""

from dataclasses import fields

import pandas as pd

from creditaudit import data, diagnostics, style
from creditaudit.credit import RULES
from creditaudit.credit.rule import RMS_EPS
from creditaudit.credit.settings import CREDIT_BRIDGE, EQUILIBRIUM, STATE_BRIDGE, STRUCTURE, VALIDATION
from creditaudit.diagnosis import D1_LIMIT, D2_FLOOR, D3_GAIN, STABILITY_DRIFT
from creditaudit.model import W2_STD
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
        "initial weights": f"torch's own for a linear map; $W_2 \\sim \\mathcal{{N}}(0, {W2_STD:g}^2)$, its bias 0",
        "feedback": "DFA: $B_l \\sim \\mathcal{N}(0, 1)/\\sqrt{10}$, the embed shares $B_0$; FA: "
        "$\\mathcal{N}(0, 1)/\\sqrt{d}$; drawn once",
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
    rows += [(style.name(method), what, how, why) for (method, what, how), why in STRUCTURE]
    return pd.DataFrame(rows, columns=["method", "setting", "value", "what it is, and why"])


def validation() -> pd.DataFrame:
    """What Credit Bridge's matching and warm-up were chosen by; not from records."""
    chosen = f"warm-up {CREDIT_BRIDGE.warm_up:g}".replace("0.", ".")
    rows = [
        (f"**{tried}**, chosen" if tried == chosen else tried, without, with_) for tried, without, with_ in VALIDATION
    ]
    return pd.DataFrame(rows, columns=["tried", "accuracy, $\\lambda=0$", "accuracy, $\\lambda=0.01$"])


def measured() -> pd.DataFrame:
    """Every diagnostic: what it is, on how many test pictures, and where it fails."""
    pictures = diagnostics.BATCH * diagnostics.BATCHES
    rows = [
        (
            "D1, scale stability",
            "the largest growth over one block, $\\max_l \\operatorname{med}\\lVert h_{l+1}\\rVert / "
            "\\operatorname{med}\\lVert h_l\\rVert$",
            pictures,
            f"above {D1_LIMIT:g}",
        ),
        (
            "D2, reference validity",
            f"$\\operatorname{{med}}\\lVert g_L\\rVert$ of a loss averaged over batches of {diagnostics.BATCH}",
            pictures,
            f"below {D2_FLOOR:g}",
        ),
        ("D3, depth utility", "accuracy minus that of the same method frozen", "all", f"below {100 * D3_GAIN:+g} pp"),
        (
            "$\\Gamma_l$, cosine",
            "mean over samples of the cosine between $a_l$ and $g_l$, the gradient at the block's *input*; $\\Gamma$ "
            "averages all blocks, *deep* $\\Gamma$ all but the first",
            pictures,
            "",
        ),
        (
            "$\\rho_l$",
            "correlation of $\\langle a_l, v\\rangle$ with the change of the loss when $h_l$ moves by "
            f"{diagnostics.RHO_EPS:g} in each of {diagnostics.DIRECTIONS} random directions $v$",
            diagnostics.BATCH * diagnostics.RHO_BATCHES,
            "",
        ),
        (
            "nudging",
            f"change of the loss when $h_l$ moves by {diagnostics.NUDGES[0]:g} $a_l/\\mathrm{{rms}}(a_l)$ against "
            "$a_l$: useful credit makes it negative",
            pictures,
            "",
        ),
        ("weight drift", "$\\lVert W_1 - W_1^{init}\\rVert / \\lVert W_1^{init}\\rVert$ of a block", "", ""),
        (
            "stability",
            "cosine between the batches' mean directions of $g_{L/2}$; no test, an interpretive reading: the study "
            f"speaks of drift above {STABILITY_DRIFT:g}",
            pictures,
            "",
        ),
        (
            "fresh-$B$ null",
            "deep $\\Gamma$ with feedback matrices the network was never trained against, "
            f"{diagnostics.FRESH_DRAWS} draws",
            diagnostics.BATCH,
            "",
        ),
    ]
    return pd.DataFrame(rows, columns=["name", "what it is", "test pictures", "fails"]).astype({"test pictures": str})
