"""A fast part of `make faults`."""

import random

import pytest

from benchmarks import damage, faults, victims
from creditaudit import paths
from creditaudit.engine.spec import RunSpec
from creditaudit.runs import train
from creditaudit.runs.files import RecordError
from creditaudit.study import injections, sizing


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> victims.Project:
    made = victims.Project(tmp_path_factory.mktemp("faults") / "project")
    profiles = made.folder / "params" / "profiles.yaml"
    long, short = '"epochs": 120', '"epochs": 60'
    assert long in profiles.read_text()
    profiles.write_text(profiles.read_text().replace(long, short))
    return made


@pytest.fixture(scope="module")
def reference(project) -> dict[str, str]:
    status, said = project.finish()
    assert status == 0, said
    return project.numbers()


def test_a_damaged_record_is_never_believed(project, tmp_path):
    train.run(RunSpec(method="dfa", width=16, depth=2, epochs=2, data="tiny", batch=64), project.store)
    found = damage.damage_records(200, project, random.Random(1))
    assert found.sound() and found.times == 200, found
    project.clear()


def test_a_damaged_side_file_is_never_believed(tmp_path):
    found = damage.damage_side_files(100, tmp_path / "side", random.Random(2))
    assert found.sound() and found.times == 100, found


def test_a_run_that_overflows_is_a_result(tmp_path):
    found = damage.diverging(tmp_path)
    assert found.sound(), found


@pytest.mark.parametrize(  # the seed decides when: while modules load, after two records, in a run
    ("name", "seed"),
    [("Ctrl-C three times in a row", 10), ("SIGKILL of the campaign", 113), ("SIGKILL of a worker", 25)],
)
def test_a_disturbed_campaign_goes_on_to_the_same_bits(name, seed, project, reference):
    found = faults.inject(name, 1, project, reference, random.Random(seed))
    assert found.sound(), found


def test_the_table_of_sizes_is_bounded_by_the_longest_run():
    hours = sizing.hours([3600.0] * 16 + [7200.0], overhead=0.0)["campaign's order"]
    assert hours[1] == pytest.approx(18, abs=0.01) and hours[512] == pytest.approx(2, abs=0.01)
    assert hours.is_monotonic_decreasing


def test_the_table_of_faults_has_one_row_per_fault_and_is_held_to_its_checksum(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    told = 0, True, "stopped", "c0ffee"
    rows = [injections.Injected(name, times, *told) for name, times in (("a", 1), ("b", 2), ("a", 3))]
    for row in rows:
        injections.keep("paper", row)
    assert injections.rows("paper") == rows[1:]
    path = tmp_path / "paper" / injections.FILE
    path.write_text(path.read_text().replace('"lost": 0', '"lost": 1', 1))
    with pytest.raises(RecordError, match="checksum"):
        injections.rows("paper")
