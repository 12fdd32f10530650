"""The runner: parameters refused early, executions verified for real, results canonical."""

import nbformat
import papermill
import pytest
import yaml
from nbformat.v4 import new_code_cell

from creditaudit import paths
from creditaudit.bind import notebooks, pages, stamps
from creditaudit.bind.notebooks import NotebookError
from creditaudit.runs.yamlfile import YamlError
from creditaudit.study import params
from creditaudit.study.params import ParameterError
from tests import sample_project

PARAMETERS = """profile: str = "smoke"
rate: float = 0.1  # a = in a comment
floor: float | None = None
epochs: int = 3"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    return sample_project.build(tmp_path, monkeypatch)


def section(*sources: str, name: str = "tiny") -> str:
    """A notebook of a parameters cell and the given code cells."""
    first = new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]})
    notebook = nbformat.v4.new_notebook(cells=[first, *map(new_code_cell, sources)])
    nbformat.write(notebook, paths.NOTEBOOKS / f"{name}.ipynb")
    return name


def written(text: str) -> None:
    """A parameter set as a person would write it."""
    folder = paths.PARAMS / "tiny"
    folder.mkdir(exist_ok=True)
    (folder / "a.yaml").write_text(text)


def test_layers_of_parameters(project):
    assert params.parameters("sample", "d256_L4", "other")["rate"] == 0.01
    assert params.parameters("sample", "d256_L4", "other")["width"] == 64
    assert params.parameters("sample", "d512_L2", "other")["width"] == 512
    assert params.parameters("sample", "d512_L2", "smoke")["rate"] == 0.5
    assert params.parameters("sample", "d512_L2", "smoke")["set_name"] == "d512_L2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raet: 0.1", "params/tiny/a.yaml: tiny has no parameter 'raet': did you mean 'rate'?"),
        ("rate: 1e-3", "write 1.0e-3"),
        ("floor: '0.5'", "is a string"),
        ("rate: true", "rate = True is not float"),
        ("epochs: 2.5", "epochs = 2.5 is not int"),
        ("epochs: true", "epochs = True is not int"),
        ("epochs: 0", "epochs = 0: input should be greater than or equal to 1"),
        ("rate: [0.1]", "is not float"),
        ("- rate", "must be a mapping"),
        ("rate: 0.1\nrate: 0.2", r"params/tiny/a.yaml: 'rate' stands here twice .*line 2"),
        ("rate: [0.1", "params/tiny/a.yaml: while parsing"),
        ("profile: quick", "profile is the command's to choose"),
    ],
)
def test_wrong_parameters_are_refused_before_a_kernel_starts(project, monkeypatch, text, message):
    monkeypatch.setattr(papermill, "execute_notebook", lambda *_, **__: pytest.fail("a kernel was started"))
    section("1")
    written(text)
    with pytest.raises((ParameterError, YamlError), match=message.replace("?", r"\?")):
        notebooks.execute("tiny", "a", "smoke", [])


def test_a_notebook_of_ones_own_stops_nothing(project):
    nbformat.write(
        nbformat.v4.new_notebook(cells=[new_code_cell("parameters = 1")]), paths.NOTEBOOKS / "Untitled.ipynb"
    )
    (paths.NOTEBOOKS / "Untitled1.ipynb").touch()
    assert params.sections() == ["sample"] and params.profile_entry("smoke") == {"rate": 0.5}
    with pytest.raises(ParameterError, match=r"notebooks/Untitled1.ipynb: needs exactly one cell tagged"):
        params.declared("Untitled1")


def test_an_unclosed_bracket_among_the_parameters_is_named_with_its_line(project):
    sample_project.edit("sample", lambda cells: cells[0].update(source="a = ["))
    with pytest.raises(ParameterError, match=r"notebooks/sample.ipynb: line 1 of its parameters: .*: a = \["):
        params.declared("sample")


def test_right_parameters_are_taken(project):
    section()
    assert params.validate("tiny", {"rate": 2, "floor": None}) == {"rate": 2.0, "floor": None}
    assert params.validate("tiny", yaml.safe_load("floor: 1.0e-3")) == {"floor": 0.001}


def test_wrong_places_are_named(project):
    with pytest.raises(ParameterError, match="did you mean 'sample'"):
        params.parameters("samlpe", "d256_L4", "smoke")
    with pytest.raises(ParameterError, match="did you mean 'd256_L4'"):
        params.parameters("sample", "d256_L5", "smoke")
    with pytest.raises(ParameterError, match="did you mean 'smoke'"):
        params.parameters("sample", "d256_L4", "smok")
    (paths.PARAMS / "profiles.yaml").write_text("smoke: {raet: 1.0}")
    with pytest.raises(ParameterError, match="no notebook declares 'raet': did you mean 'rate'"):
        params.parameters("sample", "d256_L4", "smoke")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("smoke: {profile: paper}", "profile is the command's to choose"),
        ("smoke: {sample: {set_name: a}}", "set_name is the command's to choose"),
        ("smoke: {sample: 3}", "smoke, sample: must be a mapping"),
        ("smoke: [1]", "smoke: must be a mapping"),
        ("smoke: {}\nquick: {sample/d256_L4: {raet: 1.0}}", "no parameter 'raet': did you mean 'rate'"),
    ],
)
def test_a_wrong_entry_of_any_profile_is_refused(project, text, message):
    (paths.PARAMS / "profiles.yaml").write_text(text)
    with pytest.raises((ParameterError, YamlError), match=message):
        params.parameters("sample", "d256_L4", "smoke")


def test_a_home_at_the_root_does_not_take_the_slashes_away(monkeypatch):
    monkeypatch.setattr(notebooks.Path, "home", lambda: notebooks.Path("/"))
    assert notebooks._impersonal("<td>0.3</td> h/g") == "<td>0.3</td> h/g"
    assert notebooks._impersonal(f"{paths.ROOT}/lib") == "./lib"


def test_parameters_cell_holds_only_literals(project):
    sample_project.edit("sample", lambda cells: cells[0].update(source="import os"))
    with pytest.raises(ParameterError, match="may only hold"):
        params.declared("sample")
    sample_project.edit("sample", lambda cells: cells[0].update(source="rate = 1 / 3"))
    with pytest.raises(ParameterError, match="not a literal"):
        params.declared("sample")


def test_result_is_canonical_and_executed_only_when_something_changed(project, monkeypatch, capfd):
    section(
        "import os, sys, creditaudit\nprint(os.getcwd(), object(), epochs)\nprint('bar', file=sys.stderr)",
        "print(profile)",
    )
    read = project / "outputs/smoke/runs/b.json"  # what the notebook reads
    read.write_text("[]")
    path = notebooks.execute("tiny", "default", "smoke", [read])
    first = path.read_bytes()
    path.unlink()
    notebooks.execute("tiny", "default", "smoke", [read])
    assert path.read_bytes() == first, "two executions differ"
    text, loaded = first.decode(), nbformat.reads(first.decode(), as_version=4)
    assert "TCP" not in "".join(capfd.readouterr()), "ipykernel's warning"
    assert str(project) not in text and "papermill" not in text and notebooks.ALIVE not in text
    assert [output.text for output in loaded.cells[-2].outputs] == ["./notebooks <object object at 0x...> 3\n"]
    assert loaded.metadata.creditaudit.parameters["epochs"] == 3

    monkeypatch.setattr(notebooks, "_run", lambda *_: pytest.fail("executed again"))
    notebooks.execute("tiny", "default", "smoke", [read])
    for change in (
        lambda: read.write_text("{}"),
        lambda: path.write_text(text + "\n"),
        lambda: (paths.PARAMS / "claims.yaml").write_text("[]"),
        lambda: section("print('edited')"),
    ):
        change()
        with pytest.raises(pytest.fail.Exception, match="executed again"):
            notebooks.execute("tiny", "default", "smoke", [read])
        _believe(path, inputs=[read])


def _believe(path, inputs):
    """Bring the stamp up to date, so that the next change stands alone."""
    files = [params.source_path("tiny"), paths.PARAMS / "claims.yaml", *inputs]
    stamps.remember(path, stamps.stamp(files, params.parameters("tiny", "default", "smoke")))
    notebooks.execute("tiny", "default", "smoke", inputs)


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("half = 1\nhalf / 0", "ZeroDivisionError"),
        ("import os\nos.kill(os.getpid(), 9)", "DeadKernelError"),
    ],
)
def test_failure_is_told_kept_and_costs_no_older_success(project, cell, reason):
    target = pages.executed_path("tiny", "default", "smoke")
    target.parent.mkdir(parents=True)
    target.write_text("an older success")
    section("print('before')", cell)
    with pytest.raises(NotebookError, match=reason) as error:
        notebooks.execute("tiny", "default", "smoke", [])
    told = str(error.value)
    assert "code cell 3 failed" in told and cell.splitlines()[-1] in told
    assert "outputs/smoke/notebooks/failed/tiny--default.ipynb" in told
    assert (target.parent / "failed" / target.name).exists()
    assert target.read_text() == "an older success" and not stamps.sidecar(target).exists()


def test_kernel_that_dies_in_silence_is_noticed():
    """papermill's own record cannot be trusted: neither a missing count nor a missing answer passes."""
    alive = new_code_cell("print()", execution_count=2, outputs=[])
    ran = new_code_cell("1", execution_count=1)
    assert "did not survive" in notebooks._defect(nbformat.v4.new_notebook(cells=[ran, alive]))
    skipped = new_code_cell("1", execution_count=None)
    assert "never executed" in notebooks._defect(nbformat.v4.new_notebook(cells=[skipped, alive]))
