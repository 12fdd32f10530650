"""What made a number: code, versions, machine."""

import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from creditaudit import paths
from creditaudit.runs.seal import code_digest


@cache
def provenance() -> dict[str, Any]:
    """What made this number: code, versions, machine."""
    import torch  # late: a campaign that hands its runs out can do without

    return {
        "commit": _git("rev-parse", "HEAD") or "unknown",
        "dirty": bool(_git("status", "--porcelain", "--untracked-files=no", "--", "lib")),
        "code": code_digest(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "cpu": _cpu_name(torch.backends.cpu.get_cpu_capability()),
        "device": "cpu",
    }


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(paths.ROOT), *arguments], capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _cpu_name(capability: str) -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()} ({capability})"
