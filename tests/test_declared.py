"""`pip install creditaudit`: what looks at a person's own model runs with what pyproject.toml declares, and no more."""

import os
import subprocess
import sys
import tomllib

from packaging.requirements import Requirement

from creditaudit import paths
from creditaudit.__main__ import main
from creditaudit.paths import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DECLARED = [Requirement(line) for line in PYPROJECT["project"]["dependencies"]]

# Whatever is installed here but is not among the declared packages, or what these bring along, cannot be imported.
ONLY_DECLARED = """
import sys
from importlib import metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name as canonical

allowed, found = {"creditaudit"}, sys.argv[1:]
while found:
    name = canonical(found.pop())
    if name in allowed:
        continue
    try:
        needs = map(Requirement, metadata.requires(name) or [])
    except metadata.PackageNotFoundError:
        continue
    allowed.add(name)
    found += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
owners = metadata.packages_distributions()
blocked = {top for top, names in owners.items() if not allowed & {canonical(name) for name in names}}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"{name} is not declared", name=name)

for name in [name for name in sys.modules if name.partition(".")[0] in blocked]:
    del sys.modules[name]
sys.meta_path.insert(0, Blocker())
"""

AUDIT = """
import torch
from torch import nn
import creditaudit
from creditaudit import alignment, audit, freeze, reporting_table

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
    def forward(self, h):
        return h + torch.tanh(self.inner(h))

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), Block(), Block(), nn.Linear(8, 3))
x, y = torch.randn(64, 4), torch.randint(3, (64,))
seen = audit(model, x, y, frozen_accuracy=0.3)
aligned = alignment(model, None, x, y)
assert len(seen.states) == 3 and seen.reference == "autograd" and seen.d2
assert len(seen.to_frame()) == 3 and len(aligned.to_frame()) == 2
for shown in (seen, aligned):
    assert str(shown) and shown.plot()
assert len(reporting_table({"mine": seen})) == 1
assert freeze(model)
assert all(getattr(creditaudit, name) for name in creditaudit.__all__)
"""


def python(text: str) -> subprocess.CompletedProcess:
    names = [need.name for need in DECLARED]
    run = [sys.executable, "-W", "ignore", "-c", text, *names]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "lib")}
    return subprocess.run(run, capture_output=True, text=True, cwd=ROOT, env=environment)


def test_the_audit_needs_only_what_is_declared():
    done = python(ONLY_DECLARED + AUDIT)
    assert done.returncode == 0, done.stderr


def test_all_else_says_what_it_needs():
    done = python(ONLY_DECLARED + "from creditaudit.__main__ import main\nsys.exit(main(['claims']))")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "is not declared" in done.stderr and "make setup" in done.stderr


def test_without_a_clone_there_is_nothing_to_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path / "notebooks")
    assert main(["reproduce"]) == 1
    assert "in a clone" in capsys.readouterr().err


def test_the_extra_reproduce_has_the_rest_and_a_version_that_the_range_allows():
    dynamic = PYPROJECT["tool"]["setuptools"]["dynamic"]["optional-dependencies"]
    assert dynamic["reproduce"] == {"file": ["requirements.in"]}
    wanted = {need.name: need for need in map(Requirement, (ROOT / "requirements.in").read_text().split())}
    locked = dict(line.split(" ")[0].split("==") for line in (ROOT / "requirements.lock").open() if "==" in line[:40])
    for need in DECLARED:
        assert need.name in wanted and locked[need.name] in need.specifier
