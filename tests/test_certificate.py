"""The certificate of `make reproduce`: this machine computes what the committed records hold, and sabotage shows."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from creditaudit import paths, pipeline
from creditaudit.__main__ import main
from creditaudit.engine.spec import RunSpec
from creditaudit.runs import identity_rows, train
from creditaudit.runs.compare import AMPLIFIED, AMPLIFYING, TOLERANCE, compare, differences
from creditaudit.runs.records import Record, Store
from creditaudit.runs.seal import code_digest
from creditaudit.study import certificate, certification
from tests.factories import as_record

HERE = {"cpu": "this one", "torch": "1", "numpy": "1", "threads": 1, "device": "cpu"}
LIB = Path(paths.__file__).parent
IDENTITY = {
    "block_ratio": [0.1, 0.2],
    "deviation": 0.3,
    "cosine": 0.9,
    "deviation_by_depth": [0.0, 0.1, 0.3],
    "cosine_by_depth": [1.0, 0.95, 0.9],
}


def run(accuracy: float = 0.3, h_last: float | None = 200.0, cpu: str = "this one", **fields) -> Record:
    record = as_record(accuracy=accuracy, epochs=3, **fields)
    final = record.final | {"h_norm": [*record.final["h_norm"][:-1], h_last]}
    made = {"cpu": cpu, "cpu_seconds": 1.0, "commit": "0", "dirty": False, "code": code_digest()}
    return replace(record, final=final, provenance=HERE | made)


# The comparison


@pytest.mark.parametrize(
    ("again", "outcome", "first"),
    [
        (run(), "bit-equal", None),
        (run(cpu="another"), "bit-equal", None),
        (run(accuracy=0.301), "different", "epochs.test_accuracy[0]"),
        (run(accuracy=0.301, cpu="another"), "within tolerance", "epochs.test_accuracy[0]"),
        (run(accuracy=0.33, cpu="another"), "different", "epochs.test_accuracy[0]"),
        (run(h_last=200.1, cpu="another"), "within tolerance", "final.h_norm[4]"),
        (run(h_last=202.0, cpu="another"), "different", "final.h_norm[4]"),
        (run(h_last=2000.0, cpu="another"), "different", "final.h_norm[4]"),
        (run(h_last=None, cpu="another"), "different", "final.h_norm[4]"),
    ],
)
def test_the_verdict_on_a_retrained_run(again, outcome, first):
    found = compare(run(), again)
    assert (found.outcome, found.first) == (outcome, first)
    assert found.key in found.sentence()


@pytest.mark.parametrize(
    ("log", "value", "outcome"),
    [
        ("train_loss", 2.0001, "within tolerance"),
        ("train_loss", 2.1, "different"),
        ("train_loss", None, "different"),
        ("h_norm", [200.1] * 5, "different"),
        ("g_norm", [5e-5] * 4, "different"),  # a layer is absent
    ],
)
def test_every_epoch_counts(log, value, outcome):
    other = run(cpu="another")
    course = [*other.epochs[log][:-1], value]
    assert compare(run(), replace(other, epochs=other.epochs | {log: course})).outcome == outcome


def test_a_rule_that_amplifies_rounding_is_allowed_more_elsewhere_and_nothing_here():
    off = TOLERANCE.accuracy + (AMPLIFIED.accuracy - TOLERANCE.accuracy) / 2
    pair = {method: (run(method=method), run(0.3 + off, cpu="another", method=method)) for method in ("sb", "dfa")}
    assert {method: compare(*both).outcome for method, both in pair.items()} == {
        "sb": "within tolerance",
        "dfa": "different",
    }
    assert compare(run(method="sb"), run(0.3 + off, method="sb")).outcome == "different"


def test_a_run_that_began_on_another_machine_need_not_be_bit_equal():
    mixed = run()
    mixed = replace(mixed, provenance=mixed.provenance | {"resumed_from": [HERE | {"cpu": "another"}]})
    assert compare(mixed, run(accuracy=0.301)).outcome == "within tolerance"


@pytest.mark.parametrize("extra", [{"new": 1.0}, {"block_growth": [1.0]}, {"fresh_null": {"mean": 0.0}}])
def test_what_only_one_of_them_has_is_a_difference(extra):
    other = run()
    found = compare(run(), replace(other, final=other.final | extra))
    assert found.outcome == "different" and found.first.startswith(f"final.{next(iter(extra))}")


def test_what_later_code_logs_per_epoch_is_none():
    other = run()
    assert compare(run(), replace(other, epochs=other.epochs | {"new": [1.0] * 3})).outcome == "bit-equal"


@given(st.floats(0, 1), st.floats(0, 1))
def test_elsewhere_the_tolerance_decides_and_here_the_bits(a, b):
    found = compare(run(accuracy=a), run(accuracy=b, cpu="another"))
    assert (found.outcome == "bit-equal") == (a == b)
    assert (found.outcome != "different") == (abs(a - b) <= TOLERANCE.accuracy)
    assert (compare(run(accuracy=a), run(accuracy=b)).outcome == "bit-equal") == (a == b)


# The certificate


@pytest.fixture
def profile(tmp_path, monkeypatch) -> str:
    """Two committed runs and an identity check, both made here as well."""
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    for folder in (paths.profile_dir("quick"), certification.reference_folder("quick")):
        for method in ("bp", "dfa"):
            Store(folder).save(run(method=method))
        identity_rows.keep(folder / identity_rows.FILE, "d8_L2", {"42": IDENTITY})
    return "quick"


def test_equal_runs_are_certified_and_the_certificate_is_kept(profile):
    issued = certification.issue(profile)
    assert issued.verdict == "certified" and issued.outcomes == {"bit-equal": 2}
    assert certificate(profile) == issued
    body = json.loads((paths.profile_dir(profile) / "certificate.json").read_text())
    assert body["verdict"] == "certified" and len(body["runs"]) == 2 and body["machine"][0]["cpu"] == "this one"
    assert issued.frame.shape[1] == 2 and issued.lines()[-1].startswith("CERTIFIED")


def test_another_kind_of_cpu_is_certified_within_the_tolerance(profile):
    Store(paths.profile_dir(profile)).save(run(method="dfa", accuracy=0.301, cpu="another"))
    issued = certification.issue(profile)
    assert issued.verdict == "certified" and issued.outcomes == {"bit-equal": 1, "within tolerance": 1}
    assert issued.largest("accuracy_off") == pytest.approx(0.001)


def test_a_run_that_differs_is_named_with_the_command_that_looks_closer(profile, capsys):
    record = run(method="dfa", accuracy=0.301)
    Store(paths.profile_dir(profile)).save(record)
    assert main(["certificate"]) == 1
    said = capsys.readouterr().out
    command = next(line for line in said.splitlines() if "to look closer" in line).split(" -m creditaudit ")[1]
    assert said.splitlines()[-1].startswith("DIFFERS") and record.spec.key in command
    assert main(command.split()) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(list(differences(run(method="dfa"), record))) > 3


def test_a_run_that_was_not_trained_leaves_it_incomplete(profile):
    Store(paths.profile_dir(profile)).path(run(method="dfa").spec).unlink()
    issued = certification.issue(profile)
    assert issued.verdict == "incomplete" and issued.missing == [run(method="dfa").spec.key]


def test_a_run_of_other_code_says_nothing_about_this_one(profile):
    record = run(method="dfa")
    Store(paths.profile_dir(profile)).save(replace(record, provenance=record.provenance | {"code": "older"}))
    issued = certification.issue(profile)
    assert issued.verdict == "incomplete" and issued.outdated == [record.spec.key]


def test_a_reference_that_was_changed_is_refused(profile, capsys):
    path = certification.reference(profile).path(run(method="dfa").spec)
    path.write_text(path.read_text().replace("0.3", "0.4"))
    assert main(["certificate"]) == 1
    said = capsys.readouterr().err
    assert "does not match its checksum" in said and "git checkout" in said and "delete" not in said


def test_the_identity_check_is_part_of_it(profile):
    path = paths.profile_dir(profile) / identity_rows.FILE
    identity_rows.keep(path, "d8_L2", {"42": IDENTITY | {"block_ratio": [0.1, 0.21]}})
    assert certification.issue(profile).verdict == "differs"
    path.unlink()
    assert certification.issue(profile).verdict == "incomplete"


def test_a_profile_without_a_reference_has_none(profile, capsys):
    assert certification.issue("paper") is None and certificate("paper") is None
    assert main(["certificate", "--profile", "paper"]) == 1
    assert main(["certificate", "--run", "no-such-run"]) == 1
    assert "no-such-run" in capsys.readouterr().err


def test_the_committed_reference_is_what_the_profile_asks_for():
    committed = {record.spec for record in certification.reference("quick").all()}
    pairs = pipeline.chosen()
    asked = {section: set(pipeline.runs("quick", [p for p in pairs if p[0] == section])) for section, _ in pairs}
    assert committed == set().union(*asked.values()), "train the reference anew: see params/profiles.yaml"
    assert {spec.method for spec in committed} == {"bp", "fa", "dfa", "ep", "sb", "cb"}
    assert all(asked[section] for section in ("audit", "depth_ladder", "penalty_rescue", "normalisation"))
    assert identity_rows.read(certification.reference_folder("quick"))


# Sabotage: in a copy of the package one line is changed, and the tiny runs are trained by it

METHODS = ("bp", "fa", "dfa", "ep", "sb", "cb")
SPECS = [RunSpec(method=method, width=16, depth=2, epochs=2, data="tiny") for method in METHODS]
TRAIN = f"""
import json, os, sys
import torch  # once: each package is trained with in a fork
for line in sys.stdin:
    if child := os.fork():
        print(os.waitpid(child, 0)[1], flush=True)
        continue
    package, root = json.loads(line)
    sys.path.insert(0, os.path.dirname(package))
    os.chdir(root)
    from pathlib import Path
    from creditaudit.engine.spec import RunSpec
    from creditaudit.runs import train
    from creditaudit.runs.records import Store
    for method in {METHODS!r}:
        train.run(RunSpec(method=method, width=16, depth=2, epochs=2, data="tiny"), Store(Path("outputs/quick")))
    os._exit(0)
"""


@pytest.fixture(scope="module")
def trainer():
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "-c", TRAIN]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as made:
        yield made


@pytest.fixture(scope="module")
def honest(tmp_path_factory) -> list[Record]:
    """The records that the package itself makes."""
    store = Store(tmp_path_factory.mktemp("honest"))
    return [train.run(spec, store) for spec in SPECS]


def outcomes(honest: list[Record], root: Path, cpu: str | None = None) -> tuple[str, set[str]]:
    """The verdict on what was trained in `root`, and the rules that differ; `cpu` made the reference."""
    for record in honest:
        made = record.provenance | ({"cpu": cpu} if cpu else {})
        certification.reference("quick").save(replace(record, provenance=made))
    issued = certification.issue("quick")
    return issued.verdict, {run.key.split("-")[0] for run in issued.different}


def train_with(package: Path, root: Path, trainer: subprocess.Popen) -> None:
    print(json.dumps([str(package), str(root)]), file=trainer.stdin, flush=True)
    assert trainer.stdout.readline() == "0\n"


def test_an_honest_machine_is_certified(honest, trainer, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path / "outputs")
    train_with(LIB, tmp_path, trainer)
    assert outcomes(honest, tmp_path) == ("certified", set())


@pytest.mark.parametrize(
    ("file", "line", "changed", "caught"),
    [
        ("engine/credit/dfa.py", "Credit(self.tape.error,", "Credit(-self.tape.error,", {"dfa"}),
        ("engine/credit/fa.py", "self._back(l + 1)", "self._back(l)", {"fa"}),
        ("engine/step.py", "torch.manual_seed(spec.seed)", "torch.manual_seed(spec.seed + 1)", set(METHODS)),
        ("engine/data.py", "SeedSequence([seed, epoch", "SeedSequence([seed + 1, epoch", set(METHODS)),
        ("engine/data.py", "words[3] >> np.uint64(63) == 1", "words[3] >> np.uint64(63) == 2", set(METHODS)),
        ("engine/data.py", "dx[b] - PAD, 1", "dx[b] - PAD + 1, 1", set(METHODS)),
    ],
    ids=["rule DFA", "rule FA", "seed of weights", "seed of batches", "no flip", "crop off by one"],
)
def test_sabotage_is_caught(honest, trainer, tmp_path, monkeypatch, file, line, changed, caught):
    """On the CPU that made the reference, where the bits tell, and on another one, where only the tolerance does."""
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path / "outputs")
    package = tmp_path / "lib" / "creditaudit"
    shutil.copytree(LIB, package, ignore=shutil.ignore_patterns("__pycache__"))
    source = (package / file).read_text()
    assert source.count(line) == 1
    (package / file).write_text(source.replace(line, changed))
    train_with(package, tmp_path, trainer)
    assert outcomes(honest, tmp_path) == ("differs", caught)
    verdict, different = outcomes(honest, tmp_path, cpu="another")
    assert verdict == "differs" and caught - set(AMPLIFYING) <= different <= caught
