"""Which modules of somebody's model are its blocks, where nobody says so.

The class that repeats most, seen from outside: a ResNet's BasicBlock, InvertedResidual, EncoderBlock, BertLayer.
What lies inside such a block repeats too, and does not count; unless every one holds a list of blocks of one class, as
a stage does. A model without a repeated class is taken for a plain chain of weight layers (an MLP, AlexNet, VGG); its
blocks are then all of them but the first and the last.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn
from torch.nn.modules.conv import _ConvNd

from creditaudit.measure.inputs import AuditError, Batch, run

LISTS = (nn.ModuleList, nn.Sequential)
INHERITED = (nn.Sequential.forward, nn.ModuleList.forward, nn.ModuleDict.forward)


def candidates(
    model: nn.Module, blocks: Sequence[nn.Module | str] | None, batch: Batch | None
) -> list[list[nn.Module]]:
    """The blocks as named, or as found; of stages first what they hold. A plain chain has to be run for that."""
    if blocks is not None:
        return [_named(model, blocks)]
    if found := _repeated(model) or _listed(model):
        held = [_held(block) for block in found]
        return [[block for blocks in held for block in blocks], found] if all(held) else [found]
    if batch is None:
        raise AuditError("no class of modules repeats in this model: name its blocks, blocks=[...], or pass x and y")
    return [_between_first_and_last(model, batch)]


def is_weight_layer(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | _ConvNd) and not list(module.children())


def _named(model: nn.Module, blocks: Any) -> list[nn.Module]:
    if isinstance(blocks, str) or not isinstance(blocks, Iterable):
        like = f"{blocks!r}" if isinstance(blocks, str) else "..."
        raise AuditError(f"blocks is a {type(blocks).__name__}: pass a list of modules, blocks=[{like}]")
    names, known, found = dict(model.named_modules()), set(model.modules()), []
    for block in blocks:
        module = names.get(block) if isinstance(block, str) else block
        if not isinstance(module, nn.Module) or module not in known:
            raise AuditError(f"blocks must be modules of this model, or their names; {block!r:.60} is none")
        found.append(module)
    if not found:
        raise AuditError("blocks is empty: name the modules to audit")
    return list(dict.fromkeys(found))


def _repeated(model: nn.Module) -> list[nn.Module]:
    names = {module: name for name, module in model.named_modules()}
    kinds: dict[Any, list[nn.Module]] = defaultdict(list)
    for parent in names:
        for child in parent.children():
            if not list(child.children()) or _is_container(child):
                continue
            plain = type(child) in (*LISTS, nn.ModuleDict)  # says nothing about its kind: only beside its like
            if not plain or isinstance(parent, LISTS):
                kinds[type(child), parent if plain else None].append(child)
    groups = [list(dict.fromkeys(group)) for group in kinds.values()]
    members = {names[module] for group in groups if len(group) > 1 for module in group}

    def is_outermost(module: nn.Module) -> bool:
        parts = names[module].split(".")
        return not any(".".join(parts[:end]) in members for end in range(1, len(parts)))

    outer = [[module for module in group if is_outermost(module)] for group in groups]
    most = [group for group in outer if len(group) > 1 and len(group) == max(map(len, outer))]
    if len(most) > 1:
        all_of_them = " and ".join(f"{names[group[0]]} ({len(group)} × {type(group[0]).__name__})" for group in most)
        raise AuditError(f"{all_of_them} may be the blocks: pass blocks=[...], the modules to audit")
    return most[0] if most else []


def _held(stage: nn.Module) -> list[nn.Module]:
    """The members of the only list of blocks in it, all of one class; lists further inside do not count."""
    lists, unseen = [], list(stage.children())
    while unseen:
        module = unseen.pop()
        is_list = type(module) in LISTS and len(module) and all(list(member.children()) for member in module)
        lists += [list(module)] if is_list else []
        unseen += [] if is_list else list(module.children())
    kinds = {type(member) for member in lists[0]} if len(lists) == 1 else set()
    return lists[0] if len(kinds) == 1 else []


def _is_container(module: nn.Module) -> bool:
    """Holds composite modules and does nothing itself, as a DenseNet's block, a dictionary with a forward, does."""
    is_list = isinstance(module, (*LISTS, nn.ModuleDict)) and type(module).forward in INHERITED
    return is_list and any(list(child.children()) for child in module.children())


def _listed(model: nn.Module) -> list[nn.Module]:
    """The members of the longest list of blocks: a single composite one, or weight layers that a loop goes through."""
    lists = [
        list(dict.fromkeys(module))
        for module in model.modules()
        if isinstance(module, nn.ModuleList)
        or (type(module) is nn.Sequential and all(list(member.children()) for member in module))
    ]
    lists = [members for members in lists if any(True for m in members for _ in m.parameters())]
    longest = [members for members in lists if len(members) == max(map(len, lists))]
    if len(longest) > 1:
        raise AuditError(f"{len(longest)} lists of modules are equally long: pass blocks=[...], the modules to audit")
    return longest[0] if longest else []


def _between_first_and_last(model: nn.Module, batch: Batch) -> list[nn.Module]:
    layers: list[nn.Module] = []  # every call of one
    run(model, batch, before=[(m, lambda m, *_: layers.append(m)) for m in model.modules() if is_weight_layer(m)])
    if len(layers) < 3:
        raise AuditError(
            f"no blocks are to be found: no class of modules repeats, and {len(layers)} weight layers leave nothing "
            "between the first and the last: pass blocks=[...], the modules to audit"
        )
    return list(dict.fromkeys(layers[1:-1]))
