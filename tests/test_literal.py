"""Other networks, trained by the literal loop: the same rules, a record like all others, resumed to the same bits."""

import pytest
import torch

from creditaudit.engine import literal
from creditaudit.engine.literal import Literal
from creditaudit.engine.spec import RunSpec, SpecError
from creditaudit.engine.step import Stack, initialised
from creditaudit.measure import modules
from creditaudit.runs import train
from creditaudit.runs.records import Store
from tests.networks import batch

TINY = {"width": 16, "depth": 2, "epochs": 3, "data": "tiny", "batch": 64, "train_size": 200, "test_size": 200}
OTHERS = ("vit", "conv")


@pytest.mark.parametrize("network", OTHERS)
@pytest.mark.parametrize("method", ["bp", "fa", "dfa"])
def test_a_run_leaves_a_record_and_resumes_to_the_same_bits(network, method, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "CHECKPOINT_SECONDS", 0.0)
    spec = RunSpec(method=method, network=network, **TINY)
    whole = train.run(spec, Store(tmp_path / "whole"))
    store = Store(tmp_path / "cut")

    def pull_the_plug(_, epoch):
        if epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train.run(spec, store, pull_the_plug)
    resumed = train.run(spec, store)
    assert resumed.provenance["resumed_from"] and (resumed.epochs, resumed.final) == (whole.epochs, whole.final)
    assert Store(tmp_path / "whole").get(spec) == whole  # its record passes the schema
    if method == "bp":
        assert whole.epochs["train_loss"][-1] < whole.epochs["train_loss"][0]


@pytest.mark.parametrize("network", OTHERS)
@pytest.mark.parametrize("k", [0, 1])
def test_frozen_blocks_stay_and_the_others_move(network, k):
    run = Literal(RunSpec(method="dfa", network=network, k=k, **TINY))
    before = {name: tensor.clone() for name, tensor in run.state()["parameters"].items()}
    x, y = batch(1, dtype=torch.float32)
    run.step(x[None], y[None])
    moved = {name for name, tensor in run.state()["parameters"].items() if not torch.equal(tensor, before[name])}
    assert any(name.startswith("embed.") for name in moved) and "head.weight" in moved
    assert {int(name.split(".")[1]) for name in moved if name.startswith("blocks.")} == set(range(2 - k, 2))


@pytest.mark.parametrize("network", OTHERS)
def test_bp_takes_the_exact_gradient_and_local_rules_do_not(network):
    """The local loss of a block, driven by the exact credit without rms, has BP's gradient."""
    spec = RunSpec(method="bp", network=network, **TINY)
    net, (x, y) = literal.built(spec).double(), batch(1)
    h = [state.detach() for state in literal.states(net, x)]
    credit, first = literal.credits(spec, net, None, h, y)
    literal.losses(spec, net, None, x, y).backward()
    exact = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    local = torch.nn.functional.cross_entropy(net.readout(h[-1]), y) + (net.embed(x) * first).sum()
    for l, block in enumerate(net.blocks):
        local = local + (block(h[l]) * credit[l]).sum()
    local.backward()
    for ours, theirs in zip((p.grad for p in net.parameters()), exact, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("network", OTHERS)
def test_the_credit_of_a_sample_has_rms_one(network):
    run = Literal(RunSpec(method="fa", network=network, **TINY))
    x, y = batch(1, dtype=torch.float32)
    h = [state.detach() for state in literal.states(run.net, x)]
    credit, _ = literal.credits(run.spec.but(rms_eps=1e-30), run.net, run.feedback, h, y)
    drive = literal.normalised(credit[0], run.spec.but(rms_eps=1e-30))
    torch.testing.assert_close(drive.flatten(1).square().mean(1), torch.ones(len(y)))


def test_modules_are_examined_as_the_closed_forms_are():
    """On a ResMLP the two ways to norms and cosines agree."""
    spec = RunSpec(method="dfa", **TINY)
    module, stack = initialised(spec), Stack([spec])
    run = Literal.__new__(Literal)
    run.spec, run.net, run.feedback = spec, module, stack.rule.feedback[0]
    x, y = batch(3, 256, torch.float32)
    start = {name: tensor.clone() for name, tensor in module.named_parameters()}
    seen = modules.examine(run, start, x, y, 42)
    with torch.inference_mode():
        net = stack.net.to(torch.float64)
        closed = train.diagnostics.examine(net, net, stack.rule.to(torch.float64), x, y, 42)
    for name in ("h_norm", "g_norm", "gamma_in", "gamma_out", "block_growth"):
        assert seen[name] == pytest.approx(closed[name], rel=1e-6)
    assert seen["stability"] == pytest.approx(closed["stability"]) and seen["drift"] == [0.0, 0.0]
    assert seen.keys() == closed.keys()


@pytest.mark.parametrize("wrong", [{"method": "ep"}, {"method": "dfa", "final_norm": False}, {"width": 18}], ids=str)
def test_what_no_literal_loop_trains_is_refused(wrong):
    with pytest.raises(SpecError, match="network"):
        RunSpec(**TINY | {"network": "vit", "method": "bp"} | wrong)
