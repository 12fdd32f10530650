"""Your own rule: what is asked of it, what its records know of its code, and its runs beside the others'."""

import shutil

import pytest
import torch

from creditaudit import paths
from creditaudit.engine import catalogue
from creditaudit.engine.catalogue import RuleError
from creditaudit.engine.credit import CLASSES, Credit, Rule, onehot, output_gradient
from creditaudit.engine.credit.dfa import DirectFeedback
from creditaudit.engine.network import carried
from creditaudit.engine.spec import RunSpec, SpecError
from creditaudit.lab import rulefile
from creditaudit.lab.workbench import Workbench
from creditaudit.measure import rulecheck
from creditaudit.runs import cost, records, train
from creditaudit.runs.files import RecordError
from creditaudit.runs.records import Store

TINY = {"width": 16, "depth": 2, "epochs": 2, "data": "tiny", "train_size": 260}
SIGN = -1.0  # a constant, and a function below: the rule's file has to carry both
TABLE = torch.ones(3)


def signed(rows: torch.Tensor) -> torch.Tensor:
    return SIGN * rows


class Targets(DirectFeedback):
    """DRTP: the targets instead of the errors."""

    name = "targets"

    def block(self, l: int) -> Credit:
        return Credit(signed(onehot(self.tape)), self.feedback[:, l])


class Flipped(Targets):
    name = "flipped"

    def block(self, l: int) -> Credit:
        return super().block(l).scaled(-1.0)


class Shaped(Targets):
    name = "shaped"

    def block(self, l: int) -> Credit:
        return Credit(onehot(self.tape))  # ten numbers, whatever the width


class Wild(Targets):
    name = "wild"

    def block(self, l: int) -> Credit:
        return Credit(onehot(self.tape) / 0, self.feedback[:, l])


class Silent(Targets):
    name = "silent"

    def block(self, l: int) -> Credit:
        return Credit(0 * onehot(self.tape), self.feedback[:, l])


class Disguised(Rule):
    name = "disguised"
    relays = chains = True

    def block(self, l: int) -> Credit:
        self.g = output_gradient(self.tape) if l == self.depth - 1 else self.g + carried(self.tape, l + 1)
        return Credit(self.g)

    def embed(self) -> Credit:
        return Credit(3 * self.g + 3 * carried(self.tape, 0))


class Uphill(Disguised):
    name = "uphill"
    relays = chains = True

    def block(self, l: int) -> Credit:
        return super().block(l).scaled(-1.0)

    def embed(self) -> Credit:
        return super().embed().scaled(-1.0)


class OwnEmbed(Disguised):
    name = "own_embed"
    relays = chains = True

    def embed(self) -> Credit:
        return Credit(self.g)


class Whispering(Targets):
    name = "whispering"

    def block(self, l: int) -> Credit:
        return Credit(1e-25 * onehot(self.tape), self.feedback[:, l])


class Chained(Targets):
    """Each block's credit is made from that of the one behind it."""

    name = "chained"

    def block(self, l: int) -> Credit:
        own = super().block(l).dense()
        self.a = own if l == self.depth - 1 else own + self.a
        return Credit(self.a)

    def embed(self) -> Credit:
        return Credit(self.a)


class Stale(Chained):
    """The same, but what an earlier batch left is taken without a word."""

    name = "stale"

    def begin(self, tape) -> None:
        super().begin(tape)
        self.a = torch.zeros_like(tape.h[0])


class Forgetful(Targets):
    name = "forgetful"
    steps = 0

    def block(self, l: int) -> Credit:
        return super().block(l).scaled(1.0 + self.steps)

    def learn(self, *_) -> None:
        self.steps += 1  # of which neither a checkpoint nor a copy knows


class Mixing(Targets):
    name = "mixing"

    def block(self, l: int) -> Credit:
        return Credit(onehot(self.tape), self.feedback[:, l].mean(0, keepdim=True).expand(self.runs, CLASSES, -1))


class Broken(Targets):
    name = "broken"

    def block(self, l: int) -> Credit:
        return self.feedbak[l]


class Coarse(Targets):
    name = "coarse"

    def block(self, l: int) -> Credit:
        return Credit(onehot(self.tape).float() @ self.feedback[:, l].float())


class Bare(Targets):
    name = "bare"

    def block(self, l: int) -> torch.Tensor:
        return onehot(self.tape) @ self.feedback[:, l]


class Headless(Rule):
    name = "headless"

    def block(self, l: int) -> Credit:
        return Credit(self.tape.h[l + 1])


class Loaded(Targets):
    name = "loaded"

    def block(self, l: int) -> Credit:
        return Credit(onehot(self.tape) * TABLE, self.feedback[:, l])


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    monkeypatch.setenv(catalogue.VARIABLE, "")
    monkeypatch.setattr(cost, "cores", lambda: 1)  # a second process would only load torch once more
    records._say_once.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    catalogue.refresh()


@pytest.mark.parametrize("method", catalogue.STUDY)
def test_the_study_s_rules_pass_and_their_records_carry_no_digest(method):
    assert all(check.passed for check in rulecheck.check(method)) and catalogue.digest(method) is None


def test_feedback_alignment_with_the_blocks_own_jacobians_is_bp():
    assert rulecheck.check("fa")[-1].name == "BP with BP's matrices"
    assert all(check.name != "BP with BP's matrices" for check in rulecheck.check("dfa"))


@pytest.mark.parametrize(
    ("rule", "check"),
    [
        (Shaped, "shape"),
        (Coarse, "precision"),
        (Wild, "finite"),
        (Forgetful, "keeps its state"),
        (Mixing, "runs do not mix"),
        (Chained, "frozen blocks"),
        (Stale, "frozen blocks"),
    ],
)
def test_what_cannot_be_trained_is_refused(rule, check):
    with pytest.raises(RuleError, match=f"the check '{check}' fails"):
        Workbench(rule, **TINY)


WITHOUT_A_WORD = [
    (Silent, "not zero"),
    (Whispering, "not zero"),
    (Disguised, "not BP"),
    (OwnEmbed, "not BP"),
    (Uphill, "not uphill"),
]


@pytest.mark.parametrize(("rule", "check"), WITHOUT_A_WORD)
def test_what_would_train_without_a_word_is_named(rule, check):
    assert [each.name for each in Workbench(rule, **TINY).found if not each.passed] == [check]


@pytest.mark.parametrize("rules", [(Targets, Flipped), (Flipped, Targets)])
def test_a_rule_may_inherit_from_another_of_the_notebook(rules):
    assert [Workbench(rule, **TINY).method for rule in rules] == [rule.name for rule in rules]
    assert catalogue.label("flipped") == "flipped" and catalogue.label("targets") == "targets"


def test_code_that_fails_is_named_with_its_place():
    with pytest.raises(RuleError, match=r"'broken' fails on a small network: AttributeError.*in block"):
        Workbench(Broken, **TINY)


@pytest.mark.parametrize(("rule", "said"), [(Bare, r"returns a Tensor.*Credit\("), (Headless, "no `embed`")])
def test_an_answer_that_is_no_credit_is_refused(rule, said):
    with pytest.raises(RuleError, match=said):
        Workbench(rule, **TINY)


@pytest.mark.parametrize("seeds", [7, [], "42"])
def test_seeds_that_are_none_are_refused(seeds):
    with pytest.raises(SpecError, match="a list of at least one"):
        Workbench(Targets, seeds=seeds, **TINY)


@pytest.mark.parametrize("name", ["dfa", "My rule", "", 3])
def test_a_name_that_cannot_be_used_is_refused(name, monkeypatch):
    monkeypatch.setattr(Targets, "name", name)
    with pytest.raises(RuleError, match="small letters"):
        Workbench(Targets, **TINY)


def test_no_rule_at_all_is_refused():
    with pytest.raises(RuleError, match="derive the class from Rule"):
        Workbench(dict, **TINY)


def test_what_a_file_cannot_hold_is_named():
    with pytest.raises(RuleError, match="Loaded uses 'TABLE', a Tensor"):
        rulefile.text(Loaded)


def test_the_file_stands_alone():
    names: dict = {}
    exec(rulefile.text(Targets), names)
    assert names["SIGN"] == SIGN and names["Targets"].name == "targets" and callable(names["signed"])


def test_a_rule_has_its_ladder_its_audit_and_its_row_beside_the_others():
    bench = Workbench(Targets, **TINY)
    assert bench.ladder().frame.k.tolist() == [0, 1, 2]
    audit = bench.audit()
    assert audit.verdict.str.contains("PASS|FAIL").all() and audit.null.notna().all()
    assert bench.beside(["dfa"]).rule.tolist() == ["DFA", "targets"]
    assert bench.layers().layer.tolist() == [0, 1]


FILE = "from creditaudit.engine.credit.dfa import DirectFeedback\n\n\nclass Mine(DirectFeedback):\n    name = 'mine'\n"


@pytest.fixture
def mine(place, monkeypatch):
    """A rule in a file, and a function that changes or removes it."""
    monkeypatch.setenv(catalogue.VARIABLE, str(place / "rules"))

    def write(text: str | None) -> None:
        path = place / "rules" / "mine.py"
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True) if text is None else path.write_text(text)
        catalogue.refresh()

    write(FILE)
    return write


def test_a_record_of_another_version_of_a_rule_is_trained_again(place, mine, capsys):
    store, spec = Store(place), RunSpec(method="mine", **TINY)
    before = train.run(spec, store)
    assert before.provenance["rule"] == catalogue.digest("mine") and store.missing([spec]) == []
    mine("# a comment\n" + FILE)
    assert store.missing([spec]) == [] and store.all()
    mine(FILE + "\n    def block(self, l):\n        return super().block(l).scaled(-1.0)\n")
    assert store.missing([spec]) == [spec] and store.get(spec) is None and store.all() == []
    assert capsys.readouterr().err.count("earlier version") == 1
    after = train.run(spec, store)
    assert after.epochs["test_loss"] != before.epochs["test_loss"] and store.missing([spec]) == []


def test_records_of_a_rule_that_is_gone_are_set_aside_with_a_sentence(place, mine, capsys):
    store, spec = Store(place), RunSpec(method="mine", **TINY)
    train.run(spec, store)
    dfa = train.run(RunSpec(method="dfa", **TINY), store)
    assert "rule" not in dfa.provenance
    mine(None)
    assert [record.spec.method for record in store.all()] == ["dfa"]
    assert "records of 'mine'" in capsys.readouterr().err
    with pytest.raises(RecordError, match=r"mine-d16.*holds the rule 'mine'"):
        records.load(store.path(spec))


def test_a_checkpoint_of_another_version_of_a_rule_is_not_continued(mine):
    spec = RunSpec(method="mine", **TINY)

    class Named(train.Training):
        def __init__(self) -> None:
            self.specs = [spec]

    before = Named()._runs()
    mine(FILE + "    place = 7\n")
    assert Named()._runs() != before


def test_a_file_that_is_no_python_is_named(mine):
    mine("class Mine(:\n")
    with pytest.raises(RuleError, match=r"mine.py is no Python"):
        catalogue.entries()


def test_two_files_cannot_hold_one_rule_nor_one_of_the_study(mine, place):
    shutil.copy(place / "rules" / "mine.py", place / "rules" / "other.py")
    catalogue.refresh()
    with pytest.raises(RuleError, match="a rule 'mine' already"):
        catalogue.entries()
    (place / "rules" / "other.py").unlink()
    mine(FILE.replace("mine", "dfa"))
    with pytest.raises(RuleError, match="a rule 'dfa' already"):
        catalogue.entries()


def test_a_saved_rule_is_one_file_in_the_rules_folder(place, monkeypatch):
    copy = place / "credit"
    shutil.copytree(catalogue.FOLDER, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(catalogue, "FOLDER", copy)
    bench = Workbench(Targets, **TINY)
    code = catalogue.digest("targets")
    assert bench.save() == copy / "targets.py" == catalogue.entries()["targets"].path
    assert catalogue.digest("targets") == code and bench.save() == copy / "targets.py"
