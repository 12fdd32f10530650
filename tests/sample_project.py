"""A small project in a temporary folder: one notebook, two parameter sets, two profiles, three claims."""

import json
import shutil
from pathlib import Path

import nbformat
import pytest

from creditaudit import paths

FIXTURE = Path(__file__).parent / "fixtures" / "sample.ipynb"
PAPER = paths.PAPER


def build(root: Path, patch: pytest.MonkeyPatch) -> Path:
    """Lay the project out and point `creditaudit.paths` at it."""
    for name in ("notebooks", "params/sample", "outputs/smoke/runs"):
        (root / name).mkdir(parents=True)
    shutil.copy(FIXTURE, root / "notebooks" / "sample.ipynb")
    (root / "params/sample/d256_L4.yaml").write_text("rate: 1.0e-2\n")
    (root / "params/sample/d512_L2.yaml").write_text("width: 512\nks: [0, 1, 2]\n")
    (root / "params/profiles.yaml").write_text("smoke:\n  rate: 0.5\nother:\n  sample/d256_L4: {width: 64}\n")
    (root / "params/appendix.yaml").write_text(
        "title: What training depth is worth\norder: [sample]\n"
        "subtitle: A sample appendix, made to test the machinery.\n"
    )
    claims = [{"verdict": verdict} for verdict in ["reproduced"] * 5 + ["contradicted"] + ["inconclusive"] * 2]
    (root / "outputs/smoke/claims.json").write_text(json.dumps(claims))
    (root / "outputs/smoke/runs/a.json").write_text("{}")
    (root / "paper").symlink_to(PAPER)
    patch.setattr(paths, "ROOT", root)
    for name in ("notebooks", "params", "outputs"):
        patch.setattr(paths, name.upper(), root / name)
    return root


def edit(section: str, change) -> None:
    """Let `change` alter the cells of a source notebook."""
    path = paths.NOTEBOOKS / f"{section}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    change(notebook.cells)
    nbformat.write(notebook, path)
