"""Made-up run records in the real schema, for tests that need records but no training.

No two lists are alike, so that what reads the wrong one shows (layers and epochs: test_metrics).
"""

from typing import Any

from creditaudit.engine.spec import RunSpec
from creditaudit.runs.records import Record


def make_record(
    method: str = "dfa",
    accuracy: float = 0.3,
    h_last: float = 200.0,
    g_last: float = 4e-4,
    growth: float = 3.0,
    gamma: float = 0.1,
    rho: float = 0.1,
    **fields: Any,
) -> dict[str, Any]:
    """A record as JSON. Other fields go to the spec; `epochs_data` and `final` override contents."""
    final_changes, epochs_changes = fields.pop("final", {}), fields.pop("epochs_data", {})
    spec = RunSpec(method=method, **fields)
    blocks, states, epochs = spec.depth, spec.depth + 1, spec.epochs
    # Every state but the last sits where a single block can make the growth asked for.
    h_norm = [h_last / growth] * blocks + [h_last]
    final = {
        "test_accuracy": accuracy,
        "h_norm": h_norm,
        "g_norm": [g_last * 2.0 ** (blocks - l) for l in range(states)],
        "g_norm_per_sample": [128 * g_last * 2.0 ** (blocks - l) for l in range(states)],
        "growth": growth,
        "block_growth": [1.0] * (blocks - 1) + [growth],
        "gamma_in": [gamma] * blocks,
        "gamma_out": [gamma + 0.011] * blocks,
        "gamma_in_clamped": [gamma - 0.013] * blocks,
        "gamma_undefined": [0] * blocks,
        "gamma_samples": 1280,
        "gamma_null": {"mean": 0.0, "std": 0.01, "draws": 32},
        "gamma_ceiling": [0.95] * blocks,
        "rho_in": [rho] * blocks,
        "rho_out": [rho + 0.017] * blocks,
        "rho_scaled_in": [rho - 0.019] * blocks,
        "nudge_in": {"0.01": [-0.027] * blocks, "0.003": [-0.008] * blocks},
        "nudge_out": {"0.01": [-0.029] * blocks, "0.003": [-0.009] * blocks},
        "stability": 0.1,
        "drift": [0.0] * (blocks - spec.k) + [0.5] * spec.k,
        "fresh_null": {"mean": 0.0, "std": 0.02, "draws": 8} if method in ("fa", "dfa") else None,
    }
    trajectory = {
        "train_loss": [2.0] * epochs,
        **{name: [accuracy] * epochs for name in ("train_accuracy", "test_accuracy")},
        "h_norm": [h_norm] * epochs,
        "g_norm": [[g_last / 8] * states] * epochs,
    }
    if method == "sb":
        trajectory["state_error"] = [10.0 ** (-4 * epoch / epochs) for epoch in range(epochs)]
    provenance = {"commit": "0" * 40, "dirty": False, "device": "cpu", "threads": 1} | {
        name: 1.0 for name in ("wall_seconds", "cpu_seconds")
    }
    return Record(spec, trajectory | epochs_changes, final | final_changes, provenance).to_json()


def as_record(**fields: Any) -> Record:
    """The same as a `Record`."""
    body = make_record(**fields)
    return Record(RunSpec(**body["spec"]), body["epochs"], body["final"], body["provenance"])


def identity_row(**changes: Any) -> dict[str, Any]:
    """One seed's identity check of a network of four blocks."""
    row = {"block_ratio": [0.1] * 4, "deviation": 0.2, "cosine": 0.98}
    return row | {"deviation_by_depth": [0.1] * 5, "cosine_by_depth": [0.9] * 5} | changes
