"""`creditaudit.freeze(model)`: the twin that D3 compares with."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from creditaudit.measure import inputs
from creditaudit.measure.blocks import candidates
from creditaudit.measure.conditions import LOOK, as_it_was, find_path
from creditaudit.measure.inputs import AuditError


def freeze(
    model: nn.Module, blocks: Sequence[nn.Module | str] | None = None, x: Any = None, y: Tensor | None = None
) -> nn.Module:
    """A copy of an untrained model whose blocks stay as they are when it is trained like the model itself.

    Train both with the same data and seed: `audit(model, x, y, frozen_accuracy=audit(twin, x, y).accuracy)` has D3.
    Blocks are those that `audit` finds, for sure where x and y are passed as well; a model without repeated blocks (a
    plain chain) has to be run to find them. Statistics of a batch norm still follow the data.
    """
    inputs.check_model(model)
    with as_it_was(model):
        if x is None:
            found = candidates(model, blocks, None)[0]
        else:
            path = find_path(model, blocks, inputs.opening(inputs.batches(model, x, y), LOOK)[0])
            found = [model.get_submodule(name) for name in path.names]
    inside = {parameter for block in found for parameter in block.parameters()}
    if not inside:
        raise AuditError("the blocks have no parameters, so there is nothing to freeze: name others, blocks=[...]")
    within = {module for block in found for module in block.modules()}
    outside = {p for module in model.modules() if module not in within for p in module.parameters(recurse=False)}
    if inside & outside:
        raise AuditError("a block shares a parameter with a part that has to train: untie them, or name other blocks")
    if inside == set(model.parameters()):
        raise AuditError("nothing would be left to train: name blocks between the first layer and the readout")
    copies: dict[int, Any] = {}
    try:
        twin = deepcopy(model, copies)
    except Exception as error:
        raise AuditError(
            f"the model cannot be copied ({error}): freeze it before anything is attached to it"
        ) from error
    for parameter in inside:
        copies[id(parameter)].requires_grad_(False)
    return twin
