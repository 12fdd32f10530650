"""`%%finding`: a sentence that appears only where the runs bear it out.

    %%finding gain["bp"].above(2); gain["dfa"].below(0)
    **Training depth pays under BP and costs under DFA:** {{ gain.bp }} against {{ gain.dfa }}.

The line holds predicates, the body markdown with jinja slots; both see the notebook's own names. All predicates
True: the finding holds, and the body is shown. One False: it fails, and the body is shown as what was not found.
Otherwise it is open: its bold lead is shown as a question, with what would decide it.

Python takes None for false, so that `not open` would hold and `all(...)` fail. Here `not`, `and`, `or`, `all` and
`any` leave open what an open part leaves open, wherever they stand outermost or inside one another.
"""

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from jinja2 import StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

State = Literal["holds", "fails", "open"]
Truth = bool | None

FAILS = "*These runs do not show it.*\n\n{quoted}\n\nNot so: {wrong}."
OPEN = "*Open: {question}{why}*"
ABSENT = "Runs are missing; `make train PROFILE={profile}` trains them."
UNASKED = "Nothing here has {key!r}, of which this finding tells; the first cell can ask for it."
UNDECIDED = "The runs at hand do not decide it."

_LEAD = re.compile(r"\*\*([^{}]+?)[.:;,]?\*\*")
_JINJA = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False)  # it writes markdown, not HTML


@dataclass(frozen=True)
class Finding:
    """What became of a sentence: its state, the markdown to show, and each predicate's answer."""

    state: State
    text: str
    predicates: dict[str, Truth]
    why: str = ""  # it is open

    @property
    def metadata(self) -> dict[str, Any]:
        """For machines that read the executed notebook."""
        notes = {"state": self.state, "predicates": self.predicates}
        return {"text/markdown": {"finding": notes | ({"why": self.why} if self.why else {})}}


def render(line: str, body: str, namespace: Mapping[str, Any]) -> Finding:
    """Decide the predicates in `line` and write `body` accordingly; the namespace is only read."""
    names, template = dict(namespace), _JINJA.from_string(body.strip())
    nodes = _predicates(line)
    predicates: dict[str, Truth] = {}
    for source, node in nodes.items():
        try:
            predicates[source] = _decide(node, source, names)
        except KeyError as error:  # a value was taken out of the first cell
            return _open(UNASKED.format(key=error.args[0]), body, predicates | {source: None})
    nodes_of = {answer: [nodes[s] for s, each in predicates.items() if each is answer] for answer in (False, None)}
    if nodes_of[False]:
        quoted = "\n".join(f"> {text}".rstrip() for text in template.render(names).splitlines())
        return Finding("fails", FAILS.format(quoted=quoted, wrong=_wrong(nodes_of[False], names)), predicates)
    if nodes_of[None]:
        return _open(_undecided(nodes_of[None], names), body, predicates)
    return Finding("holds", template.render(names), predicates)


def _open(why: str, body: str, predicates: dict[str, Truth]) -> Finding:
    """What is asked is the sentence in bold, where it is one without numbers."""
    lead = _LEAD.match(body.strip())
    question = f"{' '.join(lead[1].split())}? " if lead else ""
    return Finding("open", OPEN.format(question=question, why=why), predicates, why)


def register() -> Any:
    """Give the running IPython shell the magic and return it; elsewhere None."""
    from IPython import get_ipython
    from IPython.core.magic import no_var_expand
    from IPython.display import display

    @no_var_expand  # braces and dollars in a predicate are Python's
    def finding(line: str, cell: str) -> None:
        found = render(line, cell, shell.user_ns)
        display({"text/markdown": found.text, "text/plain": found.text}, raw=True, metadata=found.metadata)

    if (shell := get_ipython()) is not None:
        shell.register_magic_function(finding, magic_kind="cell", magic_name="finding")
    return shell


def _predicates(line: str) -> dict[str, ast.expr]:
    """Python itself separates statements at semicolons, and knows which stand inside a string."""
    line = line.strip()
    try:
        statements = ast.parse(line).body
    except SyntaxError as error:
        raise ValueError(f"not a list of predicates: {line!r} ({error.msg})") from error
    if not statements or not all(isinstance(statement, ast.Expr) for statement in statements):
        raise ValueError(f"a finding needs predicates, separated by semicolons, not {line!r}")
    return {ast.get_source_segment(line, statement): statement.value for statement in statements}


def _decide(node: ast.expr, source: str, names: dict[str, Any]) -> Truth:
    """True, False or None, by three-valued logic."""
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            answer = _decide(operand, source, names)
            return None if answer is None else not answer
        case ast.BoolOp(op=operator, values=parts):
            return _combine((_decide(part, source, names) for part in parts), isinstance(operator, ast.Or))
        case ast.Call(func=ast.Name(id="all" | "any" as called), args=[parts], keywords=[]):
            return _combine((_truth(part, source) for part in _evaluate(parts, names)), called == "any")
    return _truth(_evaluate(node, names), source)


def _combine(answers: Iterable[Truth], settles: bool) -> Truth:
    """One answer that settles it (True for any, False for all) does; else an open one leaves it open."""
    unknown = False
    for answer in answers:
        if answer is settles:
            return settles
        unknown |= answer is None
    return None if unknown else not settles


def _evaluate(node: ast.expr, names: dict[str, Any]) -> Any:
    return eval(compile(ast.Expression(node), "<finding>", "eval"), names)


def _truth(value: Any, source: str) -> Truth:
    if value is not None and not isinstance(value, bool | np.bool_):
        raise TypeError(f"{source} must give True, False or None, not {type(value).__name__}")
    return None if value is None else bool(value)


def _wrong(denied: Iterable[ast.expr], names: dict[str, Any]) -> str:
    """Which predicates fail, with their numbers where they ask a sample."""
    asked = ((_asked(node, names), f"`{ast.unparse(node)}`") for node in denied)
    return "; ".join(f"{about.of} is not {about.relation}" if about else code for about, code in asked)


def _undecided(unknown: Iterable[ast.expr], names: dict[str, Any]) -> str:
    """What would decide an open finding: runs that are not there, or more seeds."""
    asked, runs = [_asked(node, names) for node in unknown], names.get("runs")
    least = min((about.n for about in asked if about), default=-1)
    if getattr(runs, "missing", None) and least < len({spec.seed for spec in runs.specs}):
        return runs.coverage()
    if least == 0:
        return ABSENT.format(profile=names.get("profile", "paper"))
    told = [f"{about.of} may or may not be {about.relation}" for about in asked if about]
    return f"{'; '.join(told)}." if told else UNDECIDED


class _Asked(NamedTuple):
    """What a predicate asks of a sample: how many seeds it has, how it is written, and above, below or within what."""

    n: int
    of: str
    relation: str


def _asked(node: ast.expr, names: dict[str, Any]) -> _Asked | None:
    """None where a predicate is other code."""
    match node:
        case ast.Call(func=ast.Attribute(value=subject, attr="above" | "below" | "within" as verb), args=args):
            lines = ast.copy_location(ast.Tuple(args, ast.Load()), node)  # one of them may be starred
            of, asked = _evaluate(subject, names), map(_shown, _evaluate(lines, names))
            return _Asked(getattr(of, "n", -1), str(of), f"{verb} {' to '.join(asked)}")
    return None


def _shown(line: Any) -> str:
    return f"{line:.3g}" if isinstance(line, float) else str(line)
