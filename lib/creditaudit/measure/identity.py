"""The identity check: how far the untrained stack is from the identity map. No training is involved."""

from itertools import pairwise
from typing import Any

import torch

from creditaudit.engine import data
from creditaudit.engine.spec import RunSpec
from creditaudit.engine.step import initialised, training_mode

PICTURES = 256  # the first test pictures, medians over them


def measure(width: int, depth: int, seed: int, name: str = "cifar10") -> dict[str, Any]:
    """||f_l||/||h_l|| per block, ||h_l - h_0||/||h_0|| and cos(h_l, h_0) up to every layer and for the whole stack."""
    x, _ = data.test_tensors(data.load(name, test_size=PICTURES))
    module = initialised(RunSpec(method="bp", width=width, depth=depth, seed=seed))
    with training_mode():  # one thread: the same bits whoever asks
        h = module.states(x)
    ratios = [((after - before).norm(dim=-1) / before.norm(dim=-1)).median() for before, after in pairwise(h)]
    deviations = [((state - h[0]).norm(dim=-1) / h[0].norm(dim=-1)).median().item() for state in h]
    cosines = [torch.nn.functional.cosine_similarity(state, h[0]).median().item() for state in h]
    return {
        "block_ratio": [ratio.item() for ratio in ratios],
        "deviation": deviations[-1],
        "cosine": cosines[-1],
        "deviation_by_depth": deviations,
        "cosine_by_depth": cosines,
    }
