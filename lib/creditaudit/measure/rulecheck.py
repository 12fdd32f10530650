"""What every credit rule is asked before it is trained, on a small network with random weights, in float64.

A rule whose credit has the wrong shape, is not finite, forgets its state or depends on its neighbours cannot be
trained. One that is silently zero, or silently BP, can, and is named: nothing else would tell.
"""

import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from creditaudit.engine import catalogue, model
from creditaudit.engine.credit import RULES, Rule
from creditaudit.engine.network import Credit, Tape
from creditaudit.engine.pictures import PIXELS
from creditaudit.engine.spec import RunSpec
from creditaudit.engine.step import Stack
from creditaudit.measure.diagnostics import cosines, reference_gradients, walk

SHAPE = {"width": 16, "depth": 3, "epochs": 1, "data": "tiny"}
PICTURES = 24
STIRRED = 0.3  # std of what is added to every weight: at init the blocks do nearly nothing
FAINT = 1e-12  # of the largest credit: a block that gets less gets nothing
SAME = 1e-6  # of 1 minus cosine: the same direction
AGAINST = -0.5  # mean cosine
DRAWS = ": let `draw` draw, from torch; and where carried() is used, say relays = chains = True"
RELAYS = ": if what block(l) or embed() answers is made from an earlier answer, say relays = True"


@dataclass(frozen=True)
class Check:
    """One thing that was asked, and the answer; `fatal` where such a rule cannot be trained."""

    name: str
    passed: bool
    note: str
    fatal: bool = True


def check(method: str) -> list[Check]:
    """Every check of a rule that the catalogue knows; after one that failed fatally there is nothing more to ask."""
    done: list[Check] = []
    with torch.inference_mode():
        for each in _checks(method):
            done.append(each)
            if each.fatal and not each.passed:
                break
    return done


def _checks(method: str) -> Iterator[Check]:
    for part in ("block", "embed"):
        if getattr(RULES[method], part) is getattr(Rule, part):
            raise catalogue.RuleError(f"the rule {method!r} has no `{part}`: define it, and return the credit there")
    try:
        credit = _credit(method, [0, 1])
    except catalogue.RuleError:
        raise
    except Exception as error:
        raise catalogue.RuleError(f"the rule {method!r} fails on a small network: {_place(error)}") from error
    shape = (2, PICTURES, SHAPE["width"])
    odd = [f"{_part(i)}: {tuple(each.shape)}" for i, each in enumerate(credit) if tuple(each.shape) != shape]
    yield Check("shape", not odd, f"not {shape} at {'; '.join(odd)}" if odd else f"one vector per picture, {shape}")
    coarse = [f"{_part(i)}: {each.dtype}" for i, each in enumerate(credit) if each.dtype != torch.float64]
    if coarse:
        note = f"the network is torch.float64, the credit is not at {'; '.join(coarse)}: take over the type of the tape"
        yield Check("precision", False, note)
    wild = [_part(i) for i, each in enumerate(credit) if not each.isfinite().all()]
    yield Check("finite", not wild, f"not at the {', '.join(wild)}" if wild else "everywhere")
    yield _loud(method, credit)
    exact = [each.clone() for each in reference_gradients(_tape(_stack(method, [0, 1])))]
    angles = [cosines(a, g).nan_to_num(0) for a, g in zip(credit, exact, strict=True)]
    same = [1 - each.min().item() < SAME for each in angles]
    is_bp, where = all(same[1:]), f"{sum(same)} of {len(exact)} places (embed and blocks)" if any(same) else "no place"
    note = f"in every block it points along the exact gradient: this is BP{', but for the embed' * (not same[0])}"
    note = note if is_bp else f"along the exact gradient in {where}"
    yield Check("not BP", not is_bp or method == "bp", note, fatal=False)
    means = [each.mean().item() for each in angles]
    against = [_part(i) for i, mean in enumerate(means) if mean < AGAINST]
    note = f"mean cosine with the gradient {min(means):.2f} to {max(means):.2f}"
    note = f"it points against the gradient at the {', '.join(against)}: turn its sign; {note}" if against else note
    yield Check("not uphill", not against, note, fatal=False)
    again = _credit(method, [0, 1])
    yield _equal("same seed, same credit", credit, again, "what is drawn comes from torch's stream", DRAWS)
    yield _without_others(method, credit)
    yield _equal("runs do not mix", [c[:1] for c in credit], _credit(method, [0]), "a run alone is as in company")
    yield _equal("keeps its state", *_continued(method), "checkpoints and copies hold all that `tensors()` names")
    with torch.inference_mode(False), torch.no_grad():  # a Jacobian needs autograd
        pair = _with_jacobians(method)
    if pair is not None:
        yield _equal("BP with BP's matrices", *pair, "with the blocks' own Jacobians as feedback")


def _loud(method: str, credit: list[Tensor]) -> Check:
    """Zero, less than other blocks get, or lost beside the eps that its rms is divided with."""
    norms = [torch.linalg.vector_norm(each, dim=-1).median().item() for each in credit]
    faint = [_part(i) for i, norm in enumerate(norms) if norm <= FAINT * max(norms)]
    spec, width = RunSpec(method=method, **SHAPE), SHAPE["width"]
    lost = spec.normalisation != "none" and min(norms) / width**0.5 < spec.rms_eps
    note = f"median norms {min(norms):.1e} to {max(norms):.1e}"
    if not max(norms):
        note = "it is zero everywhere: the blocks are never trained"
    elif faint:
        note = f"vanishes at the {', '.join(faint)}"
    elif lost:
        note = f"vanishes beside rms_eps = {spec.rms_eps:g}, with {note}: scale it up"
    return Check("not zero", not faint and not lost, note, fatal=False)


def _without_others(method: str, credit: list[Tensor]) -> Check:
    """Frozen blocks are asked by no rule but one that relays, and every rule trains beside them."""
    name, relays = "frozen blocks", RULES[method].relays
    try:
        alone = credit if relays else [_answer_alone(method, place) for place in range(len(credit))]
        for k in (0, 1):
            _step(_stack(method, [0, 1], k=k))
    except catalogue.RuleError:
        raise
    except Exception as error:
        return Check(name, False, f"it fails beside them, {_place(error)}" + RELAYS * (not relays))
    return _equal(name, alone, credit, "it trains with k = 0 and k = 1", RELAYS)


def _answer_alone(method: str, place: int) -> Tensor:
    stack = _stack(method, [0, 1])
    answers = _Answers(stack.rule)
    answers.begin(_tape(stack))
    return (answers.block(place - 1) if place else answers.embed()).dense().clone()


def _stack(method: str, seeds: list[int], k: int | None = None) -> Stack:
    """Small networks, each stirred by its own seed."""
    stack = Stack([RunSpec(method=method, seed=seed, k=k, **SHAPE) for seed in seeds], torch.float64)
    for tensor in stack.net.tensors():
        for s, seed in enumerate(seeds):
            noise = torch.randn(tensor[s].shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            tensor[s] += STIRRED * noise / tensor.shape[1] ** 0.5
    return stack


def _tape(stack: Stack, pictures: int = PICTURES) -> Tape:
    generator = torch.Generator().manual_seed(7)
    tape = Tape(stack.net, pictures)
    tape.forward(torch.randn(1, pictures, PIXELS, generator=generator, dtype=torch.float64))
    tape.score(torch.randint(0, 10, (1, pictures), generator=generator))
    return tape


class _Answers:
    """A rule whose answers are looked at."""

    def __init__(self, rule: Rule) -> None:
        self.rule, self.begin, self.chains = rule, rule.begin, rule.chains

    def block(self, l: int) -> Credit:
        return self._credit(self.rule.block(l), f"block({l})")

    def embed(self) -> Credit:
        return self._credit(self.rule.embed(), "embed()")

    def _credit(self, answer: Any, call: str) -> Credit:
        if not isinstance(answer, Credit):
            what = f"{self.rule.name!r} returns a {type(answer).__name__} from {call}"
            raise catalogue.RuleError(f"the rule {what}: wrap it in Credit(...)")
        return answer


def _credit(method: str, seeds: list[int]) -> list[Tensor]:
    """Of the embed and the blocks, copied: a rule may reuse its buffers."""
    stack = _stack(method, seeds)
    return _walked(stack.rule, _tape(stack))


def _walked(rule: Rule, tape: Tape) -> list[Tensor]:
    return [each.clone() for each in walk(_Answers(rule), tape)]


def _equal(name: str, ours: list[Tensor], theirs: list[Tensor], note: str, hint: str = "") -> Check:
    """Up to the rounding of sums taken in another order."""
    off = [_part(i) for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if not torch.allclose(a, b, rtol=1e-6)]
    return Check(name, not off, note if not off else f"not so at the {', '.join(off)}{hint}")


def _continued(method: str) -> tuple[list[Tensor], list[Tensor]]:
    """The credit after a training step, of the rule itself and of one that was given its tensors."""
    stack, other = _stack(method, [0, 1]), _stack(method, [2, 3])
    _step(stack)
    other.rule.load(stack.rule.tensors())
    return _walked(stack.rule, _tape(stack)), _walked(other.rule.to(torch.float64), _tape(stack))


def _step(stack: Stack) -> None:
    generator = torch.Generator().manual_seed(8)
    x = torch.randn(2, PICTURES, PIXELS, generator=generator, dtype=torch.float64)
    stack.step(x, torch.randint(0, 10, (2, PICTURES), generator=generator))


def _with_jacobians(method: str) -> tuple[list[Tensor], list[Tensor]] | None:
    """Feedback alignment whose B_l is the block's own Jacobian, for one picture, is BP; other rules are not asked."""
    stack = _stack(method, [0])
    feedback = stack.rule.tensors().get("feedback")
    square = (1, SHAPE["depth"], SHAPE["width"], SHAPE["width"])
    if feedback is None or tuple(feedback.shape) != square or not stack.rule.relays:
        return None
    tape, module = _tape(stack, 1), model.ResMLP(SHAPE["width"], SHAPE["depth"]).double()
    model.store_module(stack.net, 0, module)
    for l, block in enumerate(module.blocks):
        with torch.enable_grad():
            feedback[0, l] = torch.func.jacrev(lambda h, block=block: h + block(h))(tape.h[l][0, 0].clone())
    exact = [each.clone() for each in reference_gradients(tape)]
    return _walked(stack.rule, tape), exact


def _part(place: int) -> str:
    return "embed" if place == 0 else f"block {place - 1}"


def _place(error: Exception) -> str:
    """In the rule's own file, if it got that far."""
    frames = traceback.extract_tb(error.__traceback__)
    own = {str(entry.path) for name, entry in catalogue.entries().items() if name not in catalogue.STUDY}
    last = [frame for frame in frames if frame.filename in own] or frames
    return f"{type(error).__name__}: {error} (in {last[-1].name})"
