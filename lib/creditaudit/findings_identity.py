"""What the identity check says, in sentences."""

import pandas as pd

from creditaudit import identity, tables

NEARLY = 0.9  # cosine of what leaves the untrained stack with what enters: from here on it is nearly the identity
ALIKE = 0.1  # a relative difference that the eye would not see

NO_CLAIMS = "The study publishes no identity check of this shape."


def reading(tidy: pd.DataFrame) -> str:
    """How near to the identity the untrained stack is."""
    last = tidy[tidy.layer == tidy.layer.max()]
    seeds = tidy.seed.nunique()
    moved, turned = (tables.plus_minus(last[name].mean(), last[name].std()) for name in ("deviation", "cosine"))
    return (
        f"At initialisation each block adds a residual of {tidy.ratio.mean():.3f} of the stream's norm; the stack "
        f"moves the stream by {moved} of its norm and leaves it at cosine {turned} with where it started "
        f"(n = {seeds} seed{'' if seeds == 1 else 's'})."
    )


def meaning(tidy: pd.DataFrame) -> str:
    """What that makes of a network whose blocks are all frozen."""
    cosine = tidy[tidy.layer == tidy.layer.max()].cosine.mean()
    if cosine < NEARLY:
        return (
            f"At cosine {cosine:.2f} the stack is not nearly the identity: it hands the readout something else than "
            "the embed gave it, and what $k=0$ can do is no longer what a nearly linear classifier can do."
        )
    return (
        "The frozen stack is a near-norm-preserving random feature map: it hands the readout almost what the embed "
        "gave it. Since embed and readout always train, $k=0$ is a trained, nearly linear classifier, and every gain "
        "of depth must be counted from there and not from chance."
    )


def caption(tidy: pd.DataFrame) -> str:
    depth = int(tidy.layer.max())
    measured = tidy[tidy.layer == depth].deviation.mean()
    expected = ((1 + tidy.ratio.mean() ** 2) ** depth - 1) ** 0.5
    alike = abs(measured / expected - 1) <= ALIKE
    finding = "push the stream at right angles" if alike else "do not push the stream at right angles"
    return (
        f"**Random blocks {finding}:** after {depth} blocks it has moved by {measured:.3f} of its norm, where steps "
        f"at right angles to all before would have moved it by {expected:.3f}. Points: mean ± std (ddof 1, "
        f"n = {tidy.seed.nunique()}), dots: seeds, grey: such steps of the mean length $r$."
    )


def provenance(set_name: str, profile: str, tidy: pd.DataFrame, data: str) -> str:
    seeds = sorted(tidy.seed.unique())
    return (
        f"Set `{set_name}`, profile `{profile}`: n = {len(seeds)} (seed {', '.join(map(str, seeds))}), "
        f"{identity.PICTURES} test pictures of `{data}`, no training; cpu, outputs/{profile}/identity.json."
    )
