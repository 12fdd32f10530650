"""Re-runs, checks and explains a study of feedback alignment; audits anybody's torch model."""

_HOMES = {
    "Alignment": "alignment",
    "Audit": "audit",
    "UnsafeReading": "audit",
    "alignment": "alignment",
    "audit": "audit",
    "freeze": "freeze",
    "reporting_table": "audit",
}
__all__ = list(_HOMES)


def __getattr__(name: str):
    """`creditaudit.audit` without making every `import creditaudit` wait for torch."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"creditaudit.measure.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'creditaudit' has no attribute {name!r}")
