"""The normalisation of the credit: which runs it needs, and what is logged about who drives the blocks."""

import numpy as np
import pytest
import torch

from creditaudit.engine.spec import RunSpec
from creditaudit.measure import diagnostics
from creditaudit.runs import train
from creditaudit.runs.records import Store
from creditaudit.study import params, sections
from tests.networks import batch, scattered

METHODS, SEEDS = ["bp", "fa", "dfa"], [42, 123]
SHAPE = {"width": 16, "depth": 3}
BALANCE = ("credit_norm", "credit_common", "drive_common", "state_common", "credit_fitted", "drive_fitted")


def asked(section: str = "normalisation", **more) -> list[RunSpec]:
    given = params.defaults(section) | {"learned": None, "elsewhere": None}
    given |= {"methods": METHODS, "seeds": SEEDS, **SHAPE, "epochs": 4} | more
    return sections.runs_of(section, given)


def test_every_run_is_asked_for_once():
    runs = asked(mechanism_epochs=2)
    assert len(runs) == len(set(runs)) == len({run.key for run in runs}) == 3 * 3 * 2 * (4 + 1)
    assert {run.epochs for run in asked(mechanism_epochs=4)} == {4}  # the ladder's own
    assert {run.k for run in asked(rungs=[0, 3])} == {0, 3}


def test_a_methods_own_normalisation_is_the_depth_ladders_run():
    ladder = set(asked("depth_ladder"))
    own = {"bp": "none", "fa": "sample", "dfa": "sample"}
    assert {run for run in asked(mechanism_epochs=4) if run.normalisation == own[run.method]} == ladder
    assert RunSpec(method="bp", normalise="none", **SHAPE) == RunSpec(method="bp", **SHAPE)


@pytest.mark.parametrize("profile", ["smoke", "quick", "paper"])
def test_each_profile_has_runs_and_shares_the_ladders(profile):
    def runs(section: str) -> set[RunSpec]:
        return set(sections.runs_of(section, params.parameters(section, "d256_L4", profile)))

    ladder = runs("depth_ladder")
    shapes = {(run.method, run.width, run.depth) for run in ladder}  # beside them: another shape, learned rules
    asked = [run for run in runs("normalisation") if (run.method, run.width, run.depth) in shapes]
    own = {run for run in asked if run.normalise is None}
    longest = max(run.epochs for run in ladder)
    assert own and {run for run in own if run.epochs == longest} <= ladder


def literal_balance(vectors: np.ndarray, loss: np.ndarray) -> tuple[float, float]:
    """Common part and share of the best-fitted quarter, sample by sample."""
    total, squares, lengths = np.zeros(vectors.shape[1]), 0.0, []
    for vector in vectors:
        total += vector
        squares += float(vector @ vector)
        lengths.append(float(vector @ vector) ** 0.5)
    best = sorted(range(len(loss)), key=lambda b: loss[b])[: len(loss) // 4]
    common = np.linalg.norm(total / len(vectors)) / (squares / len(vectors)) ** 0.5
    return common, sum(lengths[b] for b in best) / sum(lengths)


def literal_drive(credit: np.ndarray, normalise: str) -> np.ndarray:
    """Up to a factor that all samples share, which neither number sees."""
    if normalise != "sample":
        return credit
    return np.stack([a / (np.sqrt(np.mean(a * a)) + 1e-6) for a in credit])


@pytest.mark.parametrize("normalise", ["sample", "batch", "none"])
@pytest.mark.parametrize("method", ["bp", "fa", "dfa"])
def test_credit_balance_is_what_a_loop_over_samples_gives(method, normalise):
    stack, module = scattered(RunSpec(method=method, normalise=normalise, **SHAPE), torch.float64)
    x, y = batch(3, 32)
    tape = stack.tape(len(y))
    tape.forward(x.unsqueeze(0))
    tape.score(y.unsqueeze(0))
    found = diagnostics.credit_balance(stack.rule, tape, normalise, 1e-6)
    states = module.states(x)
    logits = module.readout(states[-1])
    loss = torch.nn.functional.cross_entropy(logits, y, reduction="none").detach().numpy()
    if method == "bp":
        exact = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, y), states)
        raw = [exact[0], *exact[1:]]  # the embed makes h_0, block l makes h_l+1
    else:
        raw = [credit[0] for credit in diagnostics.walk(stack.rule, tape)]
    for l, credit in enumerate(a.detach().numpy() for a in raw):
        common, fitted = literal_balance(credit, loss)
        assert found["credit_common"][0][l] == pytest.approx(common)
        assert found["credit_fitted"][0][l] == pytest.approx(fitted)
        common, fitted = literal_balance(literal_drive(credit, normalise), loss)
        assert found["drive_common"][0][l] == pytest.approx(common)
        assert found["drive_fitted"][0][l] == pytest.approx(fitted)
        ordered = sorted(np.linalg.norm(a) for a in credit)
        assert found["credit_norm"][0][l] == pytest.approx(ordered[(len(ordered) - 1) // 2])
    for l, state in enumerate(states):
        assert found["state_common"][0][l] == pytest.approx(literal_balance(state.detach().numpy(), loss)[0])
    assert set(found) == set(BALANCE) and all(len(found[name][0]) == SHAPE["depth"] + 1 for name in BALANCE)


@pytest.mark.parametrize("method", ["dfa", "fa", "sb", "cb", "ep"])
def test_logging_it_changes_nothing_else(method, tmp_path, monkeypatch):
    spec = RunSpec(method=method, width=16, depth=2, epochs=2, data="tiny", batch=64)
    logged = train.run(spec, Store(tmp_path / "with"))
    monkeypatch.setattr(diagnostics, "credit_balance", lambda *_: {})
    silent = train.run(spec, Store(tmp_path / "without"))
    assert set(logged.epochs) - set(silent.epochs) == set(BALANCE)
    assert {name: values for name, values in logged.epochs.items() if name not in BALANCE} == silent.epochs
    assert logged.final == silent.final
