"""The frozen twin that D3 asks for, and the recipes of the tutorial."""

import os
import subprocess
import sys

import nbformat
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import creditaudit
from creditaudit import paths
from creditaudit.engine.model import ResMLP
from creditaudit.measure import rules
from tests.foreign import Skip, Stack, made, mlp, no_terminal_norm

pytestmark = pytest.mark.filterwarnings("ignore::creditaudit.measure.audit.UnsafeReading")


def test_a_frozen_twin_trains_all_but_the_blocks():
    torch.manual_seed(0)
    net = ResMLP(16, 2)
    twin = creditaudit.freeze(net)
    assert all(parameter.requires_grad for parameter in net.parameters())
    optimiser = torch.optim.AdamW(twin.parameters(), 0.1)
    cross_entropy(twin(torch.randn(8, 3072)), torch.arange(8)).backward()
    optimiser.step()
    changed = {n for (n, a), b in zip(net.named_parameters(), twin.parameters(), strict=True) if not torch.equal(a, b)}
    assert changed == {"embed.weight", "embed.bias", "norm.weight", "norm.bias", "head.weight", "head.bias"}


def test_a_plain_chain_is_frozen_between_its_ends():
    net = mlp(nn.Linear, nn.Linear)
    twin = creditaudit.freeze(net, x=torch.randn(4, 20), y=torch.arange(4))
    assert [layer.weight.requires_grad for layer in twin if isinstance(layer, nn.Linear)] == [True, False, False, True]
    with pytest.raises(ValueError, match="pass x and y"):
        creditaudit.freeze(net)


def test_what_cannot_be_frozen_is_refused():
    net = Stack([Skip(), Skip()])
    with pytest.raises(ValueError, match="nothing would be left"):
        creditaudit.freeze(net, [net])
    net.embed.bias = net.blocks[0].body[1].bias
    with pytest.raises(ValueError, match="shares a parameter"):
        creditaudit.freeze(net)
    with pytest.raises(ValueError, match="no parameters"):
        creditaudit.freeze(Stack([nn.ReLU(), nn.ReLU()]), ["blocks.0"])


def test_d3_from_a_twin():
    case = made(no_terminal_norm)
    twin = creditaudit.audit(creditaudit.freeze(case.model), case.x, case.y)
    seen = creditaudit.audit(case.model, case.x, case.y, frozen_accuracy=twin.accuracy)
    assert seen.gain == 0 and seen.d3 is False
    assert seen.verdict == rules.verdict(rules.judged(seen.growth, seen.g_norm, 0.0))


def recipes() -> list[str]:
    book = nbformat.read(paths.NOTEBOOKS / "audit_your_own.ipynb", as_version=4)
    return [cell.source for cell in book.cells if "recipe" in cell.metadata.get("tags", [])]


def test_the_loop_and_the_callback_of_the_notebook_log_d1_and_d2():
    torch.manual_seed(0)
    x, y = torch.randn(64, 20), torch.arange(64) % 10
    names = {"torch": torch, "creditaudit": creditaudit, "cross_entropy": cross_entropy, "x": x, "y": y}
    names |= {"Net": lambda: Stack([Skip(), Skip()]), "x_test": x, "y_test": y}
    for recipe in recipes():
        exec(recipe, names)
    assert [row["epoch"] for row in names["log"]] == list(range(6))
    assert all({"D1", "D2", "growth", "g_norm"} <= set(row) for row in names["log"])

    class Module(Stack):
        """What Lightning's module gives to a callback."""

        def log_dict(self, found: dict[str, float]) -> None:
            self.logged = found

    module = Module([Skip(), Skip()]).train()
    names["AuditCallback"](x, y).on_validation_epoch_end(None, module)
    assert module.logged["audit/D1"] == 1 and module.logged["audit/h_norm/2"] > 0 and module.training


def test_importing_the_package_loads_neither_torch_nor_what_draws():
    code = "import sys, creditaudit; first = {*sys.modules}; creditaudit.audit, creditaudit.alignment"
    told = f"{code}; print('torch' in first, 'torch' in sys.modules, {{'pandas', 'matplotlib'}} & {{*sys.modules}})"
    search = os.environ | {"PYTHONPATH": str(paths.ROOT / "lib")}
    done = subprocess.run([sys.executable, "-c", told], env=search, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "False True set()"
