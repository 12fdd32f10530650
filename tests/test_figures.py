"""One look for everything drawn, and labels that can be read."""

import matplotlib.pyplot as plt
import pytest

from creditaudit.engine import catalogue
from creditaudit.engine.credit import RULES
from creditaudit.show import name_ends, points, style
from creditaudit.study.frames import Runs
from tests.factories import as_record


def test_every_method_has_its_own_look():
    """A rule, a name in the spec, a look and a formula: what adding a method takes."""
    assert list(RULES) == list(catalogue.entries())
    assert all(entry.formula and entry.full_name for entry in catalogue.entries().values())
    with pytest.raises(KeyError, match="engine/credit"):
        style.in_order(["bp", "mine"])
    looks = [style.look(method) for method in RULES]
    for aspect in ("label", "colour", "marker", "line"):
        assert len({str(getattr(look, aspect)) for look in looks}) == len(looks)


def test_labels_that_would_collide_are_moved_apart():
    moved = style._spread(style.np.array([0.0, 1.0, 2.0, 50.0]), 10.0)
    assert moved.tolist() == [-9.0, 1.0, 11.0, 50.0]


@pytest.mark.parametrize("seeds", [(), (42,), (42, 123)])
def test_a_ladder_draws_whatever_is_missing(seeds):
    import seaborn as sns

    made = [as_record(method=m, depth=2, k=k, seed=s) for s in seeds for k in (0, 2) for m in ("bp", "dfa")]
    runs = Runs([as_record(method=m).spec for m in ("bp", "dfa")], made, "paper", "depth_ladder", "d256_L4")
    fig, ax = plt.subplots()
    sns.pointplot(runs.frame, x="k", y="accuracy", errorbar="sd", native_scale=True, ax=ax, **points(runs))
    name_ends(ax, runs.frame, "k", "accuracy")
    fig.canvas.draw()
    assert [text.get_text() for text in ax.texts] == (["BP", "DFA"] if seeds else [])
    plt.close(fig)


@pytest.mark.parametrize("rungs", [2, 5])
def test_a_name_does_not_lie_on_its_curve(rungs):
    """The curves are drawn side by side: the last one stands to the right of its rung, with caps on its bars."""
    import seaborn as sns

    methods = ("bp", "fa", "dfa")
    made = [as_record(method=m, depth=rungs, k=k, seed=s) for m in methods for k in range(rungs) for s in (42, 123)]
    runs = Runs([record.spec for record in made], made, "paper", "depth_ladder", "d256_L4")
    frame = runs.frame.assign(
        accuracy=runs.frame.method.map({"bp": 0.6, "fa": 0.4, "dfa": 0.2}) + runs.frame.seed / 1e5
    )
    fig, ax = style.figure()
    sns.pointplot(frame, x="k", y="accuracy", errorbar="sd", native_scale=True, ax=ax, **points(runs))
    name_ends(ax, frame, "k", "accuracy")
    fig.canvas.draw()
    drawn = style._points(ax)
    assert len(ax.texts) == 3 and len(drawn)
    for text in ax.texts:
        assert text.get_window_extent().count_contains(drawn) == 0
    plt.close(fig)
