"""Re-runs, checks and explains a study of feedback alignment; audits anybody's torch model."""

__all__ = ["Audit", "audit"]


def __getattr__(name: str):
    """`creditaudit.audit` without making every `import creditaudit` wait for torch."""
    if name in __all__:
        from creditaudit import dropin

        return getattr(dropin, name)
    raise AttributeError(f"module 'creditaudit' has no attribute {name!r}")
