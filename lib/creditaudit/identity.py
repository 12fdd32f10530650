"""The identity check: how far the untrained stack is from the identity map. No training is involved."""

from itertools import pairwise
from typing import Any

import torch

from creditaudit import data
from creditaudit.engine import initialised
from creditaudit.spec import RunSpec

PICTURES = 256  # the first test pictures, medians over them


def measure(width: int, depth: int, seed: int, name: str = "cifar10") -> dict[str, Any]:
    """||f_l||/||h_l|| per block, ||h_L - h_0||/||h_0||, cos(h_L, h_0) at random init."""
    x, _ = data.test_tensors(data.load(name, test_size=PICTURES))
    module = initialised(RunSpec(method="bp", width=width, depth=depth, seed=seed))
    with torch.inference_mode():
        h = module.states(x)
    first, last = h[0], h[-1]
    ratios = [((after - before).norm(dim=-1) / before.norm(dim=-1)).median() for before, after in pairwise(h)]
    return {
        "block_ratio": [ratio.item() for ratio in ratios],
        "deviation": ((last - first).norm(dim=-1) / first.norm(dim=-1)).median().item(),
        "cosine": torch.nn.functional.cosine_similarity(last, first).median().item(),
    }
