"""Progress: no long silence, and an estimate that is right within a factor of two after the first minute."""

import heapq
import re
import time
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from creditaudit.engine.spec import RunSpec
from creditaudit.runs import cost, progress
from creditaudit.runs.board import Board
from tests.factories import as_record

KINDS = [  # dear and cheap ones, long and short, some with more diagnostics than training
    RunSpec(method="bp", epochs=1),
    RunSpec(method="dfa", epochs=4),
    RunSpec(method="sb", epochs=2),
    RunSpec(method="dfa", width=512, depth=2, epochs=1),
    RunSpec(method="bp", width=512, depth=3, epochs=1),
    RunSpec(method="dfa", depth=1, hidden=1024, epochs=3),
]


def events(specs, jobs, pace):
    """(when, what, spec, epoch) of runs that take `pace` times what is expected, on `jobs` workers."""
    free, found = [0.0] * jobs, []
    for spec in specs:
        at, expected = heapq.heappop(free), cost.estimate(spec)
        found.append((at, "begin", spec, 0))
        for epoch in range(1, spec.epochs + 1):
            at += expected.epoch * pace
            found.append((at, "note", spec, epoch))
        at += expected.closing * pace
        found.append((at, "finish", spec, 0))
        heapq.heappush(free, at)
    found += [(float(second), "tick", None, 0) for second in range(0, int(max(free)), 5)]
    return sorted(found, key=lambda event: event[0])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(KINDS), min_size=50, max_size=80), st.integers(1, 3), st.floats(0.7, 8))
def test_the_estimate_is_right_within_a_factor_of_two_after_a_minute(kinds, jobs, pace):
    specs = [spec.but(seed=seed) for seed, spec in enumerate(kinds)]
    course = events(specs, jobs, pace)
    end = course[-1][0]
    piece = pace * max(max(cost.estimate(spec).epoch, cost.estimate(spec).closing) for spec in kinds)
    assume(end > 150)
    clock, errors = [0.0], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: clock[0])
        board = Board(specs, [], jobs)
        for when, what, spec, epoch in course:
            clock[0] = when
            if what == "begin":
                board.begin(spec)
            elif what == "note":
                board.note(spec.key, epoch)
            elif what == "finish":
                board.finish(spec, 0.5)
            if 60 < when < end - 2 * piece:  # of a piece that is not done nothing is known
                errors.append(board.seconds_left() / (end - when))
    assert all(0.5 < error < 2 for error in errors)
    assert board.seconds_left() == pytest.approx(0, abs=1e-6)


def test_training_elsewhere_than_in_a_terminal_is_never_silent_for_long(monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    board, spoken = Board(KINDS, [], 2), [0.0]
    for second in range(1, 100):
        clock[0] = float(second)
        board.tick()
        if capsys.readouterr().out:
            spoken.append(clock[0])
    assert max(b - a for a, b in pairwise(spoken)) <= 10


def test_a_heartbeat_is_heard_while_the_body_works_and_not_after(capsys):
    with progress.heartbeat(lambda: "at work", every=0.01):
        time.sleep(0.2)
    assert capsys.readouterr().out.count("at work") >= 3
    time.sleep(0.05)
    assert not capsys.readouterr().out


def test_a_tally_tells_what_is_left(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    tally = progress.Tally("notebooks", 4)
    clock[0], tally.done = 30.0, 3
    assert re.search(r"3 of 4 .* 10 s", tally.status())


def test_a_download_of_unknown_length_is_counted_all_the_same():
    download = progress.Tally("x", 0, " MB")
    download.done += 5.0
    assert download.status() == "x: 5 MB done"


def test_records_of_the_same_kind_calibrate_the_diagnostics_too():
    record = as_record(method="dfa", epochs=2)
    record.provenance.update(cpu_seconds=10.0, diagnostics_cpu_seconds=6.0, cpu="any")
    found = cost.estimate(record.spec.but(seed=1, epochs=5), [record])
    assert (found.epoch, found.closing, found.total) == pytest.approx((2.0, 6.0, 16.0))
