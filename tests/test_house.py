"""The rooms: imports go one way, reading needs no torch, and a credit rule is one file."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from creditaudit import paths

LIB = Path(paths.__file__).parent
ORDER = ["engine", "measure", "runs", "study", "show", "bind", "lab"]  # each may import from itself and those before it
GROUND = {"paths", "mistakes"}  # they import nothing
TOP = len(ORDER)


def room(module: str) -> int:
    """Of creditaudit.study.claims the place of study; modules that lie in no room are on top."""
    parts = module.split(".")
    return ORDER.index(parts[1]) if len(parts) > 1 and parts[1] in ORDER else -1 if set(parts) & GROUND else TOP


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("creditaudit"):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


MODULES = [path for path in sorted(LIB.rglob("*.py")) if path.name != "__init__.py"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(LIB)))
def test_imports_go_one_way(path):
    here = room(".".join(["creditaudit", *path.relative_to(LIB).with_suffix("").parts]))
    assert [name for name in imported(path) if room(name) > here] == []


DEEPEST = 9  # modules on the longest chain of imports, wherever in a file they stand


def depth(module: str, of: dict[str, set[str]], known: dict[str, int]) -> int:
    """How many modules stand on one another below this one; a circle never ends."""
    if module not in known:
        known[module] = 1 + max((depth(other, of, known) for other in of[module]), default=0)
    return known[module]


def test_no_chain_of_imports_is_long():
    files = {
        ".".join(["creditaudit", *path.relative_to(LIB).with_suffix("").parts]): path for path in LIB.rglob("*.py")
    }
    packages = {name: f"{name}.__init__" for name in (module.removesuffix(".__init__") for module in files)}
    of = {}
    for module, path in files.items():
        names = [name if name in files else name.rpartition(".")[0] for name in imported(path)]
        of[module] = {name if name in files else packages[name] for name in names} - {module}
    known: dict[str, int] = {}
    assert max(depth(module, of, known) for module in files) <= DEEPEST
    assert depth("a", {"a": {"b"}, "b": {"c"}, "c": set()}, {}) == 3


def run(code: str, **environment: str) -> str:
    search = {"PYTHONPATH": os.pathsep.join([str(LIB.parent), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | search | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_reading_needs_neither_torch_nor_matplotlib():
    loaded = run("import sys, creditaudit.study, creditaudit.study.claims; print(*sys.modules)").split()
    assert not {"torch", "matplotlib", "papermill"} & set(loaded)


@pytest.mark.parametrize(
    "verb", [["claims", "--profile", "paper"], ["train", "--dry-run"], ["claims", "--profile", "papr"]], ids=" ".join
)
def test_a_small_verb_answers_without_torch(verb, tmp_path):
    """What takes the seconds is torch; a small verb must not load it."""
    watch = f"import sys; from creditaudit.__main__ import main; main({verb!r}); print('torch' in sys.modules)"
    (tmp_path / "outputs").mkdir()
    for name in ("params", "notebooks"):
        (tmp_path / name).symlink_to(paths.ROOT / name)
    assert run(watch, CREDITAUDIT_ROOT=str(tmp_path)).split()[-1] == "False"


def test_a_new_section_is_one_notebook_and_one_yaml(tmp_path):
    """In a copy of the project: it is trained, executed, and has its place in the appendix."""
    for name in ("params", "notebooks"):
        shutil.copytree(paths.ROOT / name, tmp_path / name)
    cells = [
        (
            'profile: str = "paper"\nset_name: str = "one"\nseeds: list[int] = [1]\nwidths: list[int] = [8]',
            ["parameters"],
        ),
        (
            "from creditaudit.study import RunSpec\n"
            'shape = {"depth": 1, "epochs": 1, "data": "tiny", "train_size": 200}\n'
            'specs = [RunSpec(method="dfa", width=w, seed=s, **shape) for w in widths for s in seeds]',
            ["runs"],
        ),
        (
            'from creditaudit import show, study\nshow.start("widths")\n'
            'runs = study.load("widths", profile, set_name, specs)\n'
            "ax = runs.frame.plot.scatter('width', 'accuracy')\n"
            'show.figure(ax, "Accuracy by width.", "Points.", runs)',
            [],
        ),
        (
            "%%finding runs.of('accuracy', method='dfa', width=16).above(0)\nIt learns: {{ runs.seeds }}.",
            [],
        ),
        ("show.text(runs.provenance_note())", ["provenance"]),
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Widths")])
    for source, tags in cells:
        book.cells.append(nbformat.v4.new_code_cell(source, metadata={"tags": tags}))
    nbformat.write(book, tmp_path / "notebooks" / "widths.ipynb")
    (tmp_path / "params" / "widths").mkdir()
    (tmp_path / "params" / "widths" / "one.yaml").write_text("widths: [8, 16]\n")
    code = """
from creditaudit import pipeline
from creditaudit.bind import appendix, notebooks, pages
pairs = pipeline.chosen("widths")
assert pairs == [("widths", "one")] and pairs[0] in appendix.contents()
pipeline.train("smoke", pairs)
pipeline.run_notebooks("smoke", pairs)
print([state for _, state, _ in pages.findings("smoke")])
"""
    assert run(code, CREDITAUDIT_ROOT=str(tmp_path)).splitlines()[-1] == "['holds']"
    assert len(list((tmp_path / "outputs/smoke/runs").glob("*.json"))) == 4
    assert (tmp_path / "outputs/smoke/figures/widths--one.svg").exists()


RULE = """
from creditaudit.engine.credit.dfa import DirectFeedback


class Mirrored(DirectFeedback):
    name = "mirrored"
    label = "mirrored DFA"
    colour = "#000000"
    marker = "X"
    full_name = "DFA with the sign turned"
    formula = "$a_l = -e B_l$"

    def block(self, l):
        return super().block(l).scaled(-1.0)
"""


def test_a_new_rule_is_one_file(tmp_path):
    """In a copy of the package: the rule is found, named, drawn, trained and compared, and nothing else was touched."""
    shutil.copytree(LIB, tmp_path / "lib" / "creditaudit", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "lib" / "creditaudit" / "engine" / "credit" / "mirrored.py").write_text(RULE)
    code = """
from pathlib import Path
from creditaudit.engine.spec import RunSpec
from creditaudit.runs import train
from creditaudit.runs.records import Store
from creditaudit.show import looks
tiny = {"width": 16, "depth": 2, "epochs": 1, "data": "tiny", "train_size": 200}
records = [train.run(RunSpec(method=m, **tiny), Store(Path("out"))) for m in ("dfa", "mirrored")]
assert records[0].epochs["test_loss"] != records[1].epochs["test_loss"]
print(looks(["mirrored", "bp"])["hue_order"])
"""
    search = {"PYTHONPATH": str(tmp_path / "lib")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | search, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['bp', 'mirrored']"


EVALUATED = {  # what a person wrote to be run, in a notebook of theirs
    "study/sections.py": {"exec"},  # the cell tagged `runs`
    "show/finding.py": {"eval"},  # the line of a `%%finding`, in the kernel whose cell it is
}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(LIB)))
def test_nothing_is_unpickled_or_evaluated(path):
    called, place = set(), path.relative_to(LIB).as_posix()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {getattr(node, "module", None), *(alias.name for alias in node.names)}
            assert not names & {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
        elif isinstance(node, ast.Call):
            name, settings = (
                ast.unparse(node.func),
                {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords},
            )
            assert name != "torch.load" or settings["weights_only"] == "True"
            assert "allow_pickle" not in settings and settings.get("cache") != "True"  # numba's is a pickle
            assert name != "yaml.load" or ast.unparse(node.args[1]) == "_Loader"  # a SafeLoader
            called |= {name} & {"eval", "exec"}
    assert called == EVALUATED.get(place, set())
