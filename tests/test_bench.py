"""The bench's arithmetic; how fast anything is, is not for tests to say."""

import pytest

from benchmarks import bench, race


def measured(**ms: float):
    """Every contender at 10 ms a step, but those named."""
    field_of = race.contenders()
    for contender in field_of:
        contender.times = [ms.get(contender.name, 10.0) / 1e3] * 3
    return bench.summarise(field_of)


def line(lines: list[str], start: str) -> str:
    (found,) = [text for text in lines if text.startswith(start)]
    return found


def test_a_promise_is_kept_or_missed_by_the_numbers():
    slow, fast = "plain DFA, 1 process x 2 threads", "engine DFA"
    kept = line(bench.verdicts(measured(**{slow: 41.0, fast: 10.0})), "DFA against the plain loop, one")
    missed = line(bench.verdicts(measured(**{slow: 39.0, fast: 10.0})), "DFA against the plain loop, one")
    assert kept.count("(kept)") == 2 and "4.10 at the minimum" in kept
    assert missed.count("(MISSED)") == 2


def test_peak_is_what_the_matrix_product_reaches():
    frame = measured(**{"GEMM peak": 2 * race.GEMM**3 / 300e9 * 1e3})
    assert frame.attrs["peak"] == pytest.approx(300.0)
    assert frame.loc["GEMM peak", "of peak, min"] == 1.0


def test_logging_is_compared_with_the_whole_run():
    """391 steps of 1 ms and a test pass of 9 an epoch: 9 / 400; 8 s of diagnostics, two runs at once, add 40."""
    frame = measured(**{"test pass": 9.0} | {name: 1.0 for name in ("engine BP", "engine DFA", "engine DFA, frozen")})
    assert all("0.022 at the minimum (kept)" in text for text in bench.logging_shares(frame, diagnosing=0.0))
    assert all("0.111 at the minimum (MISSED)" in text for text in bench.logging_shares(frame, diagnosing=8.0))


def test_the_ladder_is_summed_over_all_its_runs():
    """72 runs of 39100 steps and 100 test passes, 10 ms each: 7.84 h; 10 s of diagnostics, two at once, add .1 h."""
    assert "72 runs with two workers: 7.84 h at the minimum (MISSED)" in bench.ladder_hours(measured(), 0.0)
    assert "7.94 h at the median (MISSED)" in bench.ladder_hours(measured(), 10.0)
    quick = measured(**{_kind: 5.0 for _kind in map(race.kind_name, race.ladder_specs())})
    assert "3.93 h at the minimum (kept)" in bench.ladder_hours(quick, 0.0)
