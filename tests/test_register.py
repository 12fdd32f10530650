"""The register: every claim once, with the interval that decides it."""

from dataclasses import replace

import pytest

from creditaudit import paths, study
from creditaudit.runs.records import Store
from creditaudit.show import register
from creditaudit.study import claims, frames, origin, report
from tests.factories import as_record

CLAIMS = {claim.id: claim for claim in claims.load_claims()}


def result(claim: claims.Claim, **changes) -> claims.Result:
    plain = claims.Result(
        claim.id, claim.statement, claim.kind, claim.expected, claim.margin, 0.2, None, 3, "inconclusive", "", "", claim
    )
    return replace(plain, **changes)


def test_every_claim_is_counted_once(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    Store(tmp_path / "paper").save(as_record())
    results = study.judge_all("paper")
    counts = report.counts(results)
    total = counts.iloc[-1]
    assert total.claims == len(CLAIMS) == total.reproduced + total.contradicted + total.inconclusive
    assert counts.claims[:-1].sum() == total.claims
    rows = register.rows(results)
    assert len(rows) == len(CLAIMS) and rows.place.all()
    assert set(rows[rows.n.isna()].reason) == {"missing runs"}


def test_a_claim_of_several_parts_has_them_beside_its_words():
    claim = next(c for c in CLAIMS.values() if c.form == "all" and c.all[0].direction == "above" and len(c.all) > 1)
    held = [line.threshold + (1 if line.direction == "above" else -1) for line in claim.all]
    held[0] = claim.all[0].threshold - 0.5
    row = register.rows([result(claim, expected="", observed=held)]).iloc[0]
    assert row.ours == f"{len(held) - 1} of {len(held)} hold" and row.statement.startswith(claim.statement)
    assert " *Ours: " in row.statement and "(n=" not in row.statement


@pytest.mark.parametrize(
    ("name", "ci", "shown", "relative"),
    [
        ("ladder.d256_L4.bp.k0", [-0.01, 0.004], "[−0.010, +0.004]", (-0.5, 0.2)),  # margin .02
        ("audit.d256_L4.h.bp", [0.0, 1.0], "[×1, ×10]", (0.0, 2.0)),  # half a decade
        ("audit.d256_L4.g_layers.bp", [[0.0, 0.1], [-0.3, 0.0]], "[×0.5, ×1]", (-0.6, 0.0)),  # the worst layer
        ("ladder.d256_L4.bp_gain", [0.21, 0.24], "[+0.210, +0.240]", None),
        ("audit.d256_L4.degenerate_growth.dfa", [3.0, 4.0], "[1.0e3, 1.0e4]", None),
        ("ladder.d256_L4.bp_monotone", [[0.2, 0.3], [0.1, 0.2], [-0.1, 0.1], [0.0, 0.1]], "[−0.100, +0.100]", None),
        ("identity.d256_L4.cosine", None, None, None),
    ],
)
def test_the_interval_is_the_one_that_decides(name, ci, shown, relative):
    found = result(CLAIMS[name], ci=ci)
    assert register.interval(found) == shown
    assert register.relative(found) == (relative if relative is None else pytest.approx(relative))


def test_what_runs_took_is_told_apart_by_kind_of_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    specs = frames.runs_of("depth_ladder", "d256_L4", "paper").specs[:3]
    for spec, cpu in zip(specs, ("Fast(R) CPU (AVX512)", "Fast(R) CPU (AVX512)", "Slow CPU (AVX2)"), strict=True):
        record = replace(as_record(), spec=spec)
        spent = {"cpu": cpu, "cpu_seconds": 7200.0}
        Store(tmp_path / "paper").save(replace(record, provenance=record.provenance | spent))
    everything = frames.everything("paper")
    assert len(everything.records) == 3 and len(everything.missing) == len(everything.specs) - 3
    hours = origin.spent(everything.records).groupby("CPU")["core-hours"].sum()
    assert hours.to_dict() == {"Fast CPU (AVX512)": 4.0, "Slow CPU (AVX2)": 2.0}
