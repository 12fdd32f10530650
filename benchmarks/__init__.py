"""Measures the training step against the usual loops; `make bench`."""
