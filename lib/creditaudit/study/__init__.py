"""From records to verdicts: a section's runs, tidy frames, samples, claims. Knows neither torch nor matplotlib."""

from creditaudit.engine.spec import RunSpec
from creditaudit.study.certification import Certificate, certificate
from creditaudit.study.claims import claim, judge, judge_all, predictions, published
from creditaudit.study.frames import Runs, everything, load, runs_of
from creditaudit.study.sample import Sample
from creditaudit.study.verdicts import every

__all__ = [
    "Certificate",
    "RunSpec",
    "Runs",
    "Sample",
    "certificate",
    "claim",
    "every",
    "everything",
    "judge",
    "judge_all",
    "load",
    "predictions",
    "published",
    "runs_of",
]
