"""Every metric on one record in which no two numbers are alike: the wrong list, layer, epoch or step shows."""

import pytest

from creditaudit.engine.spec import RunSpec
from creditaudit.runs.records import Record
from creditaudit.study import metrics
from creditaudit.study.metrics import METRICS

RUN = Record(
    RunSpec(method="sb", depth=3, epochs=3),
    epochs={
        "h_norm": [[1.0, 2.0, 3.0, 4.0], [1.0, 7.0, 420.0, 430.0], [1.0, 2.5, 5.5, 6.5]],
        "g_norm": [[4e-5, 3e-5, 2e-5, 1e-5], [7e-8, 6e-8, 5e-8, 8e-8], [9e-5, 8e-5, 7e-5, 6e-5]],
        "state_error": [0.8, 0.4, 0.2],
        "credit_fitted": [[0.5, 0.1, 0.1, 0.1], [0.5, 0.1, 0.1, 0.1], [0.9, 0.12, 0.14, 0.22]],
        "drive_fitted": [[0.5, 0.1, 0.1, 0.1], [0.5, 0.1, 0.1, 0.1], [0.8, 0.22, 0.24, 0.29]],
        "credit_common": [[0.5, 0.1, 0.1, 0.1], [0.5, 0.1, 0.1, 0.1], [0.7, 0.03, 0.04, 0.08]],
        "drive_common": [[0.5, 0.1, 0.1, 0.1], [0.5, 0.1, 0.1, 0.1], [0.6, 0.05, 0.06, 0.13]],
        "state_common": [[0.5, 0.1, 0.1, 0.1], [0.5, 0.1, 0.1, 0.1], [0.31, 0.42, 0.53, 0.97]],
        "state_error_layers": [[0.9, 0.8, 0.7], [0.5, 0.4, 0.3], [0.30, 0.05, 0.25]],
    },
    final={
        "test_accuracy": 0.31,
        "h_norm": [11.0, 12.0, 13.0, 14.0],
        "g_norm": [2.1, 2.2, 2.3, 2.4],
        "growth": 3.5,
        "gamma_in": [0.1, 0.2, 0.4],
        "gamma_out": [0.01, 0.02, 0.06],
        "gamma_in_clamped": [0.03, 0.05, 0.07],
        "gamma_ceiling": [0.7, 0.8, 0.9],
        "rho_in": [0.5, 0.6, 0.8],
        "rho_out": [0.05, 0.06, 0.10],
        "rho_scaled_in": [0.51, 0.62, 0.84],
        "nudge_in": {"0.01": [-0.1, -0.2, -0.6], "0.003": [-0.01, -0.02, -0.06]},
        "nudge_out": {"0.01": [-0.3, -0.4, -0.8], "0.003": [-0.03, -0.04, -0.08]},
        "stability": 0.13,
        "fresh_null": {"mean": 0.003, "std": 0.02, "draws": 8},
    },
    provenance={},
)
ROW = {"block_ratio": [0.09, 0.10, 0.14], "deviation": 0.19, "cosine": 0.98}
STATES, BLOCKS = (0, 1, 2, 3), (0, 1, 2)
EXPECTED = {
    "test_accuracy": 0.31,
    "h_norm": [11.0, 12.0, 13.0, 14.0],
    "g_norm": [2.1, 2.2, 2.3, 2.4],
    "g_norms": [2.1, 2.2, 2.3, 2.4],
    "g_norm_1024": [9e-5, 8e-5, 7e-5, 6e-5],
    "h_times_g": 14.0 * 2.4,
    "growth": 3.5,
    "growth_peak": 60.0,
    "g_lowest": 8e-8,
    "first_d1": 2,
    "first_d2": 2,
    "gamma": 0.7 / 3,
    "gamma_deep": 0.3,
    "gamma_at": [0.1, 0.2, 0.4],
    "gamma_out": 0.03,
    "gamma_clamped": 0.05,
    "ceiling_deep": 0.85,
    "rho": 1.9 / 3,
    "rho_deep": 0.7,
    "rho_out": 0.07,
    "rho_scaled_deep": 0.73,
    "nudge": -0.3,
    "stability": 0.13,
    "fresh_null": 0.003,
    "fresh_null_std": 0.02,
    "state_error_fall": 0.25,
    "state_error_first": 0.3,
    "state_error_later": 0.25,
    "credit_fitted": 0.16,
    "drive_fitted": 0.25,
    "credit_common": 0.05,
    "drive_common": 0.08,
    "state_common": [0.31, 0.42, 0.53, 0.97],
    "identity_ratio": 0.11,
    "identity_deviation": 0.19,
    "identity_cosine": 0.98,
    "identity_row": [0.09, 0.10, 0.14, 0.19, 0.98],
}


def test_every_metric_has_its_expected_value_here():
    assert set(EXPECTED) == set(METRICS)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_metric_is_what_it_says(name):
    metric, expected = METRICS[name], EXPECTED[name]
    if metric.source == "identity":
        seen = metric.read(ROW)
    elif metric.layer:
        seen = [metrics.read(name, RUN, layer) for layer in (STATES if metric.layer == "state" else BLOCKS)]
    else:
        seen = metrics.read(name, RUN)
    assert seen == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["gamma", "gamma_deep", "rho", "nudge"])
def test_a_mean_over_an_undefined_block_is_undefined(name):
    holes = {"gamma_in": [0.1, None, 0.4], "rho_in": [0.5, None, 0.8], "nudge_in": {"0.01": [-0.1, None, -0.6]}}
    assert metrics.read(name, Record(RUN.spec, RUN.epochs, RUN.final | holes, {})) is None
