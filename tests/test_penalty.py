"""The penalty: what is compared with what, and the notebook's own cells on made-up records."""

import sys

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

from creditaudit import paths, study
from creditaudit.runs.records import Record
from creditaudit.study.frames import Runs
from tests.factories import as_record

SEEDS = (42, 123, 456)
RESCUE = 1e-2
# (method, lambda) -> accuracy, deep Gamma, ||h_L||
RUNS = {
    ("bp", 0.0): (0.585, 0.95, 200.0),
    ("bp", RESCUE): (0.532, 0.95, 30.0),
    ("dfa", 0.0): (0.301, 0.0, 4e8),
    ("dfa", 1e-4): (0.360, -0.02, 2e4),
    ("dfa", RESCUE): (0.360, 0.15, 4e4),
    ("sb", 0.0): (0.213, 0.0, 1e8),
    ("sb", RESCUE): (0.453, 0.32, 2e3),
    ("cb", 0.0): (0.290, 0.0, 1e8),
    ("cb", RESCUE): (0.360, 0.68, 2e3),
}


def records(methods=("bp", "dfa", "sb", "cb"), seeds=SEEDS, epochs=30) -> list[Record]:
    made = []
    for place, seed in enumerate(seeds):
        for (method, penalty), (accuracy, gamma, h_last) in RUNS.items():
            if method in methods:
                healthy = {"growth": 3.0, "g_last": 4e-4} if h_last < 1e6 else {"growth": 1e3, "g_last": 4e-9}
                fields = {"method": method, "penalty": penalty, "seed": seed, "epochs": epochs, **healthy}
                spread = 0.001 * place
                made.append(as_record(**fields, accuracy=accuracy + spread, gamma=gamma, rho=gamma, h_last=h_last))
        made += [as_record(method=method, seed=seed, epochs=epochs, k=0, accuracy=0.35) for method in methods]
    return made


def runs_of(made: list[Record], asked: list[Record] | None = None) -> Runs:
    return Runs([record.spec for record in asked or made], made, "paper", "penalty_rescue", "d256_L4")


def test_every_penalty_is_compared_with_the_one_frozen_run():
    runs = runs_of(records())
    assert runs.gain("dfa", penalty=RESCUE).mean == pytest.approx(1.1)
    assert runs.gain("dfa", penalty=1e-4).mean == pytest.approx(1.1)
    assert runs.gain("dfa").mean == pytest.approx(-4.8)
    assert runs.gain("sb", penalty=RESCUE).short == "+10.4\u00a0±\u00a00.1\u00a0pp"
    lost = runs_of([record for record in records() if record.spec.k or record.spec.seed == 42])
    assert lost.gain("dfa", penalty=RESCUE).values.keys() == {42}


def test_the_penalty_repairs_d1_and_d2_and_d3_where_the_blocks_are_used():
    runs = runs_of(records())
    assert runs.diagnose("dfa") == {"D1": False, "D2": False, "D3": False}
    assert runs.diagnose("dfa", penalty=RESCUE) == {"D1": True, "D2": True, "D3": False}
    assert runs.diagnose("sb", penalty=RESCUE) == {"D1": True, "D2": True, "D3": True}
    assert set(runs_of(records(seeds=[42])).diagnose("dfa", penalty=RESCUE).values()) == {None}


def test_a_longer_run_is_not_taken_for_one_of_the_section():
    made = [*records(), *(as_record(method="dfa", penalty=RESCUE, seed=seed, epochs=9) for seed in SEEDS[:2])]
    runs = runs_of(made)
    with pytest.raises(ValueError, match="say which epochs"):
        runs.of("accuracy", method="dfa", penalty=RESCUE)
    assert runs.of("accuracy", method="dfa", penalty=RESCUE, epochs=9).n == 2
    assert runs.gain("dfa", penalty=RESCUE, epochs=9).n == 0  # no frozen run of that length
    assert runs.diagnose("dfa", penalty=RESCUE, epochs=9)["D3"] is None


# ---- the notebook ------------------------------------------------------------------------------------------


@pytest.fixture
def execute(tmp_path, monkeypatch):
    """All cells of the notebook in this process, on these runs; returns its names and its findings' states."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv(paths.RUNNER, "1")
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # the shell puts its own there
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)

    def run(runs: Runs) -> tuple[dict, dict[str, str]]:
        monkeypatch.setattr(study, "load", lambda *_: runs)
        states = {}
        for cell in nbformat.read(paths.NOTEBOOKS / "penalty_rescue.ipynb", 4).cells:
            if cell.cell_type == "code":
                with capture_output() as captured:
                    shell.run_cell(cell.source).raise_error()
                for output in captured.outputs:
                    found = (output.metadata or {}).get("text/markdown", {}).get("finding")
                    if found:
                        states[cell.source.split("**")[1]] = found["state"]
        return shell.user_ns, states

    yield run
    plt.close("all")
    InteractiveShell.clear_instance()


def test_what_the_findings_say_of_three_seeds(execute):
    _, states = execute(runs_of(records()))
    assert states["The penalty restores DFA's scale and its reference."] == "holds"
    assert states["Cosine and function disagree."] == "holds"
    assert states["The penalty is not free."] == "holds"
    assert states["DFA's blocks are hardly worth training under any penalty."] == "open"  # two penalties have no run


@pytest.mark.parametrize(("methods", "seeds"), [(("dfa",), (42,)), ((), SEEDS)])
def test_one_seed_of_one_method_and_no_run_at_all_leave_everything_open(execute, methods, seeds):
    _, states = execute(runs_of(records(methods, seeds), records()))
    assert set(states.values()) == {"open"}


@pytest.mark.parametrize(
    ("norms", "ratio"),
    [
        ([80.0, 80.0, 80.0, 80.0, 4e8], 0.8),  # the last state is not moved
        ([80.0, 4e8, 4e8, 4e8, 4e8], 4e6),
    ],
)
def test_a_run_whose_rho_hangs_on_the_step_is_listed_with_the_ratio_of_the_steps(execute, norms, ratio):
    made = records(["bp"], [42])
    off = {"rho": 0.3, "final": {"rho_scaled_in": [0.8] * 4, "h_norm": norms}}
    made[1] = as_record(method="bp", penalty=RESCUE, epochs=30, **off)
    names, _ = execute(runs_of(made))
    (run,) = names["fragile"].itertuples()
    assert (run.method, run.penalty, run.seed) == ("BP", RESCUE, 42) and run.ratio == pytest.approx(ratio)
