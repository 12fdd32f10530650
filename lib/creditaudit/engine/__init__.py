"""The training step: spec, model, network, data, credit rules. Knows no file but the pictures."""
