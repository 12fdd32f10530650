"""The whole pipeline, end to end, offline: profile smoke in a copy of the project."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import nbformat
import pytest

from creditaudit import paths
from creditaudit.runs import files, records

pytestmark = pytest.mark.filterwarnings("ignore")


def copied(root: Path) -> Path:
    """A copy without outputs, so that nothing here touches the real ones."""
    for name in ("notebooks", "params", "paper/templates"):
        shutil.copytree(paths.ROOT / name, root / name)
    return root


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    return copied(tmp_path_factory.mktemp("project"))


def started(project: Path, *arguments: str) -> subprocess.Popen:
    environment = os.environ | {"CREDITAUDIT_ROOT": str(project), "PYTHONPATH": str(paths.ROOT / "lib")}
    environment.pop("CREDITAUDIT_RUNNER", None)
    command = [sys.executable, "-m", "creditaudit", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def creditaudit(project: Path, *arguments: str) -> subprocess.CompletedProcess:
    process = started(project, *arguments)
    said = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, *said)


@pytest.fixture(scope="module")
def first(project) -> subprocess.CompletedProcess:
    return creditaudit(project, "reproduce", "--profile", "smoke")


def outputs(project: Path) -> Path:
    return project / "outputs" / "smoke"


def test_one_command_leaves_an_appendix_and_verdicts(project, first):
    assert first.returncode == 0, first.stderr + first.stdout
    html, pdf = outputs(project) / "appendix.html", outputs(project) / "appendix.pdf"
    assert "proves nothing" in html.read_text()
    assert pdf.read_bytes().startswith(b"%PDF")
    verdicts = json.loads((outputs(project) / "claims.json").read_text())
    jsonschema.validate(verdicts, json.loads((paths.PAPER / "claims.schema.json").read_text()))
    trained = [claim for claim in verdicts if claim["kind"] != "exact"]
    assert all(claim["verdict"] == "inconclusive" and "needs profile paper" in claim["reason"] for claim in trained)
    elsewhere = [claim for claim in verdicts if claim["cause"] == "another profile"]
    assert len(elsewhere) >= len(trained) and f"\n{len(elsewhere)} more claims need" in first.stdout
    assert list((outputs(project) / "tables").glob("depth_ladder--*.csv"))


def test_no_page_shows_a_value_that_only_python_has(project, first):
    """A number that is missing is said to be missing, in words."""
    pages = [
        *(outputs(project) / "notebooks").glob("*.ipynb"),
        *(paths.ROOT / "outputs/paper/notebooks").glob("*.ipynb"),
    ]
    shown = [
        (page.name, text)
        for page in pages
        for cell in nbformat.read(page, as_version=4).cells
        for output in cell.get("outputs", [])
        for kind, text in output.get("data", {}).items()
        if kind.startswith("text/")
    ]
    assert len(shown) > 100
    values = [(page, re.sub(r"`[^`]*`|<code>.*?</code>", "", text)) for page, text in shown]  # a predicate is code
    assert [(page, text) for page, text in values if re.search(r"\b(None|nan|NaN|inf)\b", text)] == []


def test_repeating_it_trains_and_executes_nothing(project, first):
    before = {path: path.read_bytes() for path in outputs(project).rglob("*") if path.is_file()}
    again = creditaudit(project, "reproduce", "--profile", "smoke")
    assert again.returncode == 0, again.stderr
    assert "training: 0 runs trained" in again.stdout
    assert "executed in" not in again.stdout
    assert {path: path.read_bytes() for path in outputs(project).rglob("*") if path.is_file()} == before


def ladder_record(project: Path) -> Path:
    found = (outputs(project) / "runs").glob("dfa-d16-L2-k1-*.json")
    return next(path for path in found if records.load(path).spec.normalise is None)


def test_a_deleted_record_is_the_only_run_that_retrains(project, first):
    path = ladder_record(project)
    before = records.load(path)
    path.unlink()
    again = creditaudit(project, "train", "--profile", "smoke")
    assert "training: 1 runs trained" in again.stdout, again.stderr
    after = records.load(path)
    assert (after.epochs, after.final) == (before.epochs, before.final)


def test_a_changed_number_is_refused_and_a_forged_one_shows(project, first):
    """Nothing is typed in: what the table shows is what the record says."""
    path, table = ladder_record(project), outputs(project) / "tables" / "depth_ladder--d256_L4.csv"
    original = path.read_text()
    body = json.loads(original)
    body["final"]["test_accuracy"] = 0.777
    path.write_text(json.dumps(body))
    refused = creditaudit(project, "notebooks", "--profile", "smoke", "--section", "depth_ladder")
    assert refused.returncode == 1
    assert "checksum" in refused.stderr and path.stem in refused.stderr
    path.write_text(json.dumps(body | {"sha256": files.checksum(body)}))
    forged = creditaudit(project, "notebooks", "--profile", "smoke", "--section", "depth_ladder", "--set", "d256_L4")
    assert forged.returncode == 0, forged.stderr
    assert "0.777" in table.read_text()
    path.write_text(original)


def test_mistakes_are_named_before_anything_runs(project):
    wrong = creditaudit(project, "reproduce", "--profile", "smoke", "--section", "depth_lader")
    assert wrong.returncode == 1 and "depth_ladder" in wrong.stderr
    wrong = creditaudit(project, "train", "--profile", "smok")
    assert wrong.returncode == 1 and "smoke" in wrong.stderr
    early = creditaudit(project, "appendix", "--profile", "quick")
    assert early.returncode == 1 and "`make reproduce PROFILE=quick` trains first" in early.stderr
    listed = creditaudit(project, "train", "--profile", "paper", "--dry-run", "--section", "depth_ladder")
    assert "72 of 72 runs to train" in listed.stdout, listed.stderr


def test_a_campaign_that_a_scheduler_stops_leaves_no_worker_and_can_go_on(tmp_path):
    campaign = started(copied(tmp_path), "train", "--profile", "smoke", "--section", "depth_ladder", "--jobs", "1")
    assert any(line.startswith("1/") for line in campaign.stdout), "no run finished"
    campaign.terminate()
    _, said = campaign.communicate(timeout=60)  # returns only when every worker has closed its end of the pipes, too
    assert campaign.returncode == 130
    assert re.search(r"stopped: \d+ of \d+ runs finished, \d+ left; the same command goes on", said), said
    assert list((outputs(tmp_path) / "runs").glob("*.json"))
