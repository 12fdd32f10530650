"""The front page says what the records say, and names things that exist."""

import re
import subprocess
from dataclasses import replace

import pytest

from creditaudit import overview, paths, readme
from creditaudit.__main__ import _HELP
from creditaudit.records import Store
from tests.factories import as_record

TEXT = readme.README.read_text()


def new_records() -> bool:
    """A campaign or a verification is under way: what is not committed, hence not rendered, yet."""
    asked = ["git", "status", "--porcelain", "--", "outputs/paper/runs", "outputs/paper/verified.json"]
    return bool(subprocess.run(asked, cwd=paths.ROOT, capture_output=True, text=True, check=False).stdout)


@pytest.mark.skipif(new_records(), reason="there are records that have not been committed")
def test_generated_blocks_are_current():
    assert readme.filled(TEXT, readme.blocks()) == TEXT, "run `make appendix PROFILE=paper` to refresh README.md"


def test_a_block_without_marks_is_an_error():
    with pytest.raises(ValueError, match="verdicts"):
        readme.filled("no marks here", {"verdicts": "x"})


def test_every_linked_file_exists():
    links = re.findall(r"\]\(([^)h][^)]*)\)", TEXT)
    assert links
    assert [link for link in links if not (paths.ROOT / link).exists()] == []


def test_every_make_target_and_verb_exists():
    makefile = (paths.ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.M))
    assert set(re.findall(r"make ([a-z-]+)", TEXT)) - {"sure"} <= targets
    verbs = set(re.findall(r"python -m creditaudit ([a-z][a-z-]*)", TEXT))
    assert verbs <= set(_HELP)


def test_core_hours_of_two_kinds_of_cpu_are_not_added(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    specs = [spec for runs in overview.ladders("paper").values() for spec in runs.specs][:3]
    for spec, cpu in zip(specs, ("Fast(R) CPU (AVX512)", "Fast(R) CPU (AVX512)", "Slow CPU (AVX2)"), strict=True):
        record = replace(as_record(), spec=spec)
        spent = {"cpu": cpu, "cpu_seconds": 7200.0}
        Store(tmp_path / "paper").save(replace(record, provenance=record.provenance | spent))
        said = overview.cost("paper", overview.ladders("paper"))
        apart = "together took 4 core-hours on Fast CPU (AVX512) and 2 core-hours on Slow CPU (AVX2), and"
        assert (apart in said) == (spec == specs[-1])
    assert re.search(r"177 runs are still to be trained, about [\d.e+]+ core-hours of Fast CPU \(AVX512\)\.", said)
