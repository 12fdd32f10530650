"""What a person, or a broken disk, may hand us: it is used as it stands, or refused in a sentence that names the file.

More examples than `make test` has time for: CREDITAUDIT_EXAMPLES=1000 pytest tests/test_bad_input.py
"""

import json
import os
import random
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from creditaudit import __main__, paths, pipeline
from creditaudit.bind import appendix, stamps
from creditaudit.engine.spec import RunSpec, SpecError
from creditaudit.mistakes import Mistake
from creditaudit.runs import files, identity_rows, records, yamlfile
from creditaudit.runs.files import RecordError
from creditaudit.runs.records import Store
from creditaudit.study import certification, claims, frames, params, retraining
from tests.factories import as_record, identity_row, make_record

EXAMPLES = int(os.environ.get("CREDITAUDIT_EXAMPLES", "15"))
FILES = sorted(str(path.relative_to(paths.PARAMS)) for path in paths.PARAMS.rglob("*.yaml"))
some = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
FRAGMENTS = [
    b"\xff\xfe", b"\x00", b"2026-13-45", b"[" * 3000, b"{1: 2}", b"? [a]\n: b\n", b"- x", b"&a [*a]", b"*a", b"!!int x",
    b"!!python/object/apply:os.system [id]", b"!!timestamp 2026-99-99", b"1e999", b"1.0e999", b".nan", b"010", b"1:30",
    b"'", b'"', b"\t", b"{{ 7 }}", b"{0.x}", b"null", b"[]", b"{}", b"\n", b":", b"<<: x", b"../../evil", b"9" * 5000,
]  # fmt: skip
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8),
    st.sampled_from(["../../evil", "1e-3", "{0}", "{a.b}", "L", "k", "<b onclick=x>", 10**30, -1, 0, 1e308]),
    st.lists(st.integers(), max_size=3), st.dictionaries(st.text(max_size=4), st.integers(), max_size=3),
)  # fmt: skip
CHANGE = st.sampled_from(["removed", "renamed", "doubled", "replaced"])
WORDS = st.sampled_from(["train", "--profile", "smoke", "--section", "--set", "--jobs", "--dry-run"])


@pytest.fixture(scope="module")
def evidence() -> frames.Runs:
    return frames.comparable("paper")


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    shutil.copytree(paths.PARAMS, tmp_path / "params")
    for name in ("params", "outputs"):
        monkeypatch.setattr(paths, name.upper(), tmp_path / name)
    monkeypatch.setattr(claims, "PREDICTIONS", tmp_path / "params" / "predictions.yaml")
    return tmp_path


def read_everything(evidence: frames.Runs) -> None:
    """All that stands between the files and a campaign, a verdict or a page."""
    pipeline.check("smoke")
    asked = claims.load_claims()
    claims.check([*asked, *claims.load_claims(claims.PREDICTIONS)], evidence)
    appendix._config()


def refused_or_used(project: Path, name: str, content: bytes, evidence: frames.Runs) -> None:
    path = project / "params" / name
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        read_everything(evidence)
    except Mistake as mistake:
        assert path.stem in str(mistake), f"the message does not name {name}: {mistake}"
    finally:
        path.write_bytes(before)
    assert not (project / "evil").exists() and not (project.parent / "evil").exists()


@some
@given(st.sampled_from(FILES), st.sampled_from(FRAGMENTS) | st.binary(max_size=4), st.floats(0, 1), st.integers(0, 9))
def test_no_damage_to_a_yaml_file_is_a_traceback(project, evidence, name, fragment, place, removed):
    content = (project / "params" / name).read_bytes()
    at = int(place * len(content))
    refused_or_used(project, name, content[:at] + fragment + content[at + removed :], evidence)


def spots(content: Any, path: tuple = ()) -> list[tuple]:
    """Every place in nested lists and mappings."""
    entries = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [path, *(spot for name, value in entries for spot in spots(value, (*path, name)))]


def changed(content: Any, spot: tuple, how: str, value: Any) -> Any:
    """A copy with what stands at the spot replaced, removed, renamed or doubled."""
    if not spot:
        return value
    content = deepcopy(content)
    parent = content
    for name in spot[:-1]:
        parent = parent[name]
    last = spot[-1]
    if how == "removed":
        del parent[last]
    elif how == "renamed" and isinstance(parent, dict):
        parent[value if isinstance(value, str | int | float | bool | None) else "odd"] = parent.pop(last)
    elif how == "doubled" and isinstance(parent, list):
        parent.append(deepcopy(parent[last]))
    else:
        parent[last] = value
    return content


@some
@given(st.sampled_from(FILES), st.randoms(use_true_random=False), CHANGE, ODD)
def test_no_other_content_of_a_yaml_file_is_a_traceback(project, evidence, name, draw, how, value):
    content = yaml.safe_load((project / "params" / name).read_text())
    spot = draw.choice(spots(content))
    text = yaml.safe_dump(changed(content, spot, how, value), allow_unicode=True)
    refused_or_used(project, name, text.encode(), evidence)


@pytest.mark.parametrize("name", ["claims.yaml", "predictions.yaml"])
@some
@given(st.randoms(use_true_random=False), CHANGE, ODD)
def test_what_is_judged_and_said_is_read_as_it_stands_or_refused(project, evidence, name, draw, how, value):
    content = yaml.safe_load((project / "params" / name).read_text())
    text = yaml.safe_dump(changed(content, draw.choice(spots(content)), how, value), allow_unicode=True)
    refused_or_used(project, name, text.encode(), evidence)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [b"[]", b"0", b"''", b"text", b"- 1", None])
def test_a_list_a_scalar_or_a_folder_in_place_of_a_mapping_is_refused(project, evidence, name, content):
    """Also where Python finds it as empty as nothing at all."""
    path = project / "params" / name
    path.unlink()
    path.write_bytes(content) if content is not None else path.mkdir()
    with pytest.raises(Mistake, match=path.stem):
        read_everything(evidence)


@pytest.mark.parametrize("text", ["a: &x 1\nb: *x", "1: x", "true: x", "a: 1\na: 2", "~: x", "a: !!float .inf"])
def test_what_could_be_taken_for_something_else_is_refused(tmp_path, text):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(yamlfile.YamlError, match=r"a\.yaml"):
        yamlfile.load(tmp_path / "a.yaml")


@pytest.mark.parametrize("text", ["2026-13-45", "2026-01-01", "010", "1:30", "0x1f", "1_000", "1e-3", ".nan", "yes"])
def test_what_is_a_value_only_elsewhere_stays_text(tmp_path, text):
    (tmp_path / "a.yaml").write_text(text)
    assert yamlfile.load(tmp_path / "a.yaml") == text


# ---- records and what is derived from them -----------------------------------------------------------------


def forged(folder: Path, body: dict[str, Any]) -> Store:
    """A record with a valid checksum and whatever content, in place."""
    store = Store(folder)
    files.write_checked(store.path(as_record().spec), body)
    return store


def use(store: Store, profile: str) -> None:
    """What campaigns, claims and pages ask of records."""
    store.missing([as_record().spec])
    found = store.all()
    runs = frames.Runs([as_record().spec], found, profile)
    assert runs.frame.shape[0] == len(found) and isinstance(runs.provenance_note(), str)
    claims.check(claims.load_claims(), frames.comparable(profile, found))
    assert all(record.diverged in (True, False) for record in found)


@some
@given(st.randoms(use_true_random=False), CHANGE, ODD)
def test_no_content_of_a_record_is_a_traceback(tmp_path, draw, how, value):
    body = make_record()
    spot = draw.choice([spot for spot in spots(body) if spot])
    try:
        forged_body = json.loads(json.dumps(changed(body, spot, how, value), allow_nan=False))
    except ValueError:
        return
    store = forged(tmp_path, forged_body)
    try:
        use(store, "paper")
    except RecordError as error:
        assert store.path(as_record().spec).name in str(error)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a": 1e999, "sha256": "x"}', '{"a": ' + "9" * 5000 + "}", "", "null"]
)
def test_text_that_is_hardly_json_is_refused_in_a_sentence(tmp_path, text):
    path = Store(tmp_path).path(as_record().spec)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(RecordError, match="to have it made again"):
        Store(tmp_path).all()


def truncated_and_flipped(content: bytes, times: int) -> list[bytes]:
    draw, damaged = random.Random(7), [b"", b"\xff", b"[]", b"{}", b"null", b'{"made": 3}', b'{"made": {}}']
    for _ in range(times):
        flipped = bytearray(content)
        flipped[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        damaged += [bytes(flipped), content[: draw.randrange(len(content))]]
    return damaged


def test_a_damaged_stamp_is_no_stamp(tmp_path):
    page, beside = tmp_path / "page.html", tmp_path / "table.csv"
    for path in (page, beside):
        path.write_text(path.name)
    stamps.remember(page, "inputs", [beside])
    assert stamps.is_current(page, "inputs")
    stored = stamps.sidecar(page).read_bytes()
    for content in truncated_and_flipped(stored, 60):
        stamps.sidecar(page).write_bytes(content)
        current = stamps.is_current(page, "inputs")
        assert current in (True, False) and not (current and json.loads(content) != json.loads(stored))
    stamps.sidecar(page).unlink()
    stamps.sidecar(page).mkdir()
    assert not stamps.is_current(page, "inputs")
    stamps.forget(page)


@pytest.mark.parametrize(
    "row", [{}, {"block_ratio": 3}, {"cosine": "x"}, {"deviation_by_depth": []}, {"deviation": None}, {"cosine": [1]}]
)
def test_an_identity_check_of_other_content_is_refused(tmp_path, row):
    whole = identity_row(**row) if row else {}
    body = {"recipe": records.RECIPE, "shapes": {"d256_L4": {"42": whole}}}
    files.write_checked(tmp_path / identity_rows.FILE, body)
    with pytest.raises(RecordError, match="identity"):
        identity_rows.read(tmp_path)


@pytest.mark.parametrize("content", [{}, {"profile": 3}, {"runs": [3]}, {"verdict": "fine"}, {"machine": 1}])
def test_a_certificate_of_other_content_is_refused(tmp_path, monkeypatch, content):
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    files.write_checked(tmp_path / "quick" / "certificate.json", content)
    with pytest.raises(RecordError, match="certificate"):
        certification.certificate("quick")


@pytest.fixture
def issued(tmp_path, monkeypatch) -> dict[str, Any]:
    """A certificate of one run, as its file holds it."""
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    for folder in (paths.profile_dir("quick"), certification.reference_folder("quick")):
        Store(folder).save(as_record())
    certification.issue("quick")
    return files.read_checked(paths.profile_dir("quick") / certification.FILE)


@some
@given(st.randoms(use_true_random=False), CHANGE, ODD)
def test_no_content_of_a_certificate_is_a_traceback(issued, draw, how, value):
    body = changed(issued, draw.choice([spot for spot in spots(issued) if spot]), how, value)
    try:
        files.write_checked(paths.profile_dir("quick") / certification.FILE, json.loads(json.dumps(body)))
    except ValueError:
        return
    try:
        found = certification.certificate("quick")
        assert isinstance(found.frame.to_html(), str) and all(isinstance(line, str) for line in found.lines())
    except Mistake as mistake:
        assert certification.FILE in str(mistake) or "profile" in str(mistake)


@some
@given(st.dictionaries(st.sampled_from([*RunSpec.model_fields, "odd"]), ODD, max_size=4))
def test_no_spec_is_a_traceback(fields):
    try:
        spec = RunSpec(**fields)
    except SpecError as error:
        assert any(name in str(error) for name in [*fields, "method"])
    else:
        assert RunSpec(**json.loads(json.dumps(spec.model_dump()))) == spec and paths.file_name(spec.key, "run")


@pytest.mark.parametrize("rows", [None, 3, [3], [{"key": 1}], [{"nothing": 1}]])
def test_verifications_of_other_content_are_refused(tmp_path, monkeypatch, rows):
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    files.write_checked(tmp_path / "paper" / retraining.FILE, {"recipe": records.RECIPE, "rows": rows})
    with pytest.raises(RecordError, match="verified"):
        retraining.rows("paper")


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[3]", b"[{}]", b'[{"verdict": "fine"}]', b'[{"verdict": []}]', b"\xff"]
)
def test_damaged_verdicts_are_not_bound(tmp_path, monkeypatch, content):
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "claims.json").write_bytes(content)
    with pytest.raises(Mistake, match="make claims PROFILE=paper"):
        appendix.verdict_summary("paper")


# ---- names and command lines -------------------------------------------------------------------------------

EVIL = ["../../evil", "/tmp/evil", "..", ".", "a/b", "a\\b", "", "a\x00b", "-x", ".hidden", "a" * 200, "smoke\n"]


@pytest.mark.parametrize("name", EVIL)
def test_a_profile_cannot_lead_out_of_the_outputs(project, name):
    (project / "params" / "profiles.yaml").write_text(yaml.safe_dump({name: {}, "smoke": {}}))
    for ask in (
        paths.profile_dir,
        paths.products_dir if os.environ.get(paths.RUNNER) else paths.profile_dir,
        params.profile_entry,
        lambda name: params.parameters("depth_ladder", "d256_L4", name),
        lambda name: params.parameters("depth_ladder", name, "smoke"),
        params.source_path,
        appendix.output_paths,
    ):
        with pytest.raises(Mistake):
            ask(name)


@pytest.mark.parametrize("verb", ["train", "reproduce", "claims", "appendix", "notebooks"])
@pytest.mark.parametrize("name", EVIL)
def test_a_command_line_cannot_either(project, capsys, verb, name):
    (project / "params" / "profiles.yaml").write_text(yaml.safe_dump({name: {}, "smoke": {}}))
    assert __main__.main([verb, f"--profile={name}"]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not list(project.rglob("*evil*")) and not (project / "outputs").exists()


@some
@given(st.lists(WORDS | st.text(max_size=6), max_size=6))
def test_no_command_line_is_a_traceback(project, arguments):
    try:
        assert __main__.main(["train", "--dry-run", *arguments]) in (0, 1)
    except SystemExit as stop:  # argparse's own way
        assert stop.code in (0, 2)
