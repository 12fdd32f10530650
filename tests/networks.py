"""Networks and pictures for tests of the engine: a generic point, where no gradient is trivially zero."""

import torch

from creditaudit.engine import model
from creditaudit.engine.spec import RunSpec
from creditaudit.engine.step import Stack, initialised


def batch(seed: int, size: int = 16, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, model.PIXELS, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(0, 10, (size,), generator=generator)


def feedback(stack: Stack) -> torch.Tensor | None:
    return stack.rule.tensors()["feedback"][0] if stack.rule.tensors() else None


def scattered(spec: RunSpec, dtype: torch.dtype) -> tuple[Stack, model.ResMLP]:
    """Engine and module at the same generic point."""
    stack, module = Stack([spec], dtype=dtype), initialised(spec).to(dtype)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.2 * noise.to(dtype))
    model.load_module(stack.net, 0, module)
    return stack, module
