"""The first page: verdicts in tables, contradictions explained, what a profile can show, and what it all cost."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

import pandas as pd

from creditaudit import collect, metrics, params, paths, protocol, style, verified
from creditaudit.claims import Result, load_claims
from creditaudit.collect import Runs
from creditaudit.cost import cpu_seconds, usual_cpu
from creditaudit.evidence import Evidence
from creditaudit.explanations import load_explanations
from creditaudit.findings import counted, listed, section_runs
from creditaudit.records import Record, Store
from creditaudit.report import observed, published, test
from creditaudit.spec import RunSpec
from creditaudit.verdicts import MOST_SEEDS, VERDICTS, Cause

STUDY_LADDER = "about 7 hours on one GPU"  # the study's own statement of its cost
FEW = 40  # as many claims are named where a reason is listed
CAUSES: dict[Cause, str] = {
    "missing runs": "runs are missing",
    "another profile": "only the paper profile can decide them",
    "too close": "the mean lies so close to the line, or the published value is so uncertain, that not even "
    f"{MOST_SEEDS} seeds would decide",
    "crosses": "the 90 % interval crosses the line (for a number, the edge of its margin), and more seeds would decide",
    "many chances": "one of their several statements fails, but not clearly enough for so many chances to fail, and "
    "more seeds would decide",
    "no spread": "they need a second seed",
    "undefined": "a number is undefined in a run",
}
WIDE = 0.05  # a margin of accuracy, beyond which a verdict says little
WAITED = 1.1  # wall time over core time, from which on a run is said to have waited for its core
WORKERS = 2  # cores of the kind of machine this is meant for


def ladders(profile: str) -> dict[str, Runs]:
    """The ladder's runs, set by set."""
    return {name: section_runs("depth_ladder", name, profile) for name in params.sets("depth_ladder")}


def rescue(profile: str) -> tuple[Runs, float]:
    """The penalty's runs of the first set, and the lambda of its comparison."""
    name = params.sets("penalty_rescue")[0]
    asked = params.parameters("penalty_rescue", name, profile)
    return section_runs("penalty_rescue", name, profile), asked["rescue"]


def sections(profile: str) -> list[Runs]:
    """The runs of every section and set that trains."""
    return [section_runs(name, set_name, profile) for name in protocol.SECTIONS for set_name in params.sets(name)]


def everything(profile: str) -> Runs:
    """The runs of all sections, each once."""
    parts = sections(profile)
    specs = list(dict.fromkeys(spec for runs in parts for spec in runs.specs))
    records = list({record.spec: record for runs in parts for record in runs.records}.values())
    return Runs(specs, records, profile)


def claim_table(results: Iterable[Result]) -> pd.DataFrame:
    """One line per claim; the id without its section and set, which the table's caption names."""
    rows = [
        {
            "claim": f"`{result.id.split('.', 2)[-1]}`",
            "statement": f"{result.statement}{_parts(result)}",
            "published": published(result),
            "test": test(result.claim),
            "ours": _ours(result) if result.n else None,
            "n": result.n or None,
            "verdict": result.verdict,
        }
        for result in results
    ]
    return pd.DataFrame(rows, columns=["claim", "statement", "published", "test", "ours", "n", "verdict"]).astype(
        {"n": object}
    )


def _parts(result: Result) -> str:
    """What our runs gave for each of several inequalities: too long for a column of numbers."""
    return f" *Ours: {_without_n(observed(result))}.*" if result.claim.form == "all" and result.n else ""


def _ours(result: Result) -> str:
    if result.claim.form != "all":
        return _without_n(observed(result))
    lines = zip(result.claim.all, result.observed, strict=True)
    held = sum(
        value >= line.threshold if line.direction == "above" else value <= line.threshold for line, value in lines
    )
    return f"{held} of {len(result.claim.all)} on average"


def _without_n(text: str) -> str:
    return text.split(" (n=")[0]


def prefix(results: Sequence[Result]) -> str:
    """What the ids of a table's claims have in common, for its caption."""
    return f"ids begin with `{'.'.join(results[0].id.split('.', 2)[:-1])}.`" if results else ""


def claim_tables(results: Iterable[Result]) -> dict[str, list[Result]]:
    """section/set -> its claims, in the order of claims.yaml."""
    return {place: list(group) for place, group in groupby(results, key=lambda result: result.claim.place)}


def counts(results: Sequence[Result]) -> str:
    """12 reproduced, 1 contradicted, 2 inconclusive."""
    found = Counter(result.verdict for result in results)
    return ", ".join(f"{found[name]} {name}" for name in VERDICTS if found[name]) or "no claims"


def summary_table(results: Sequence[Result]) -> pd.DataFrame:
    """How many claims of each section got which verdict."""
    rows = []
    for place, group in claim_tables(results).items():
        found = Counter(result.verdict for result in group)
        section, set_name = place.split("/")
        rows.append(
            {"section": section.replace("_", " "), "set": f"`{set_name}`", "claims": len(group)}
            | {verdict: found[verdict] for verdict in VERDICTS}
        )
    total = {"section": "all", "set": "", "claims": len(results)}
    total |= {verdict: sum(row[verdict] for row in rows) for verdict in VERDICTS}
    return pd.DataFrame([*rows, total])


def reasons(results: Sequence[Result]) -> str:
    """Why claims are inconclusive: how many for each kind of reason, and the claims themselves where they are few."""
    groups: dict[str, list[str]] = {}
    for result in results:
        if why := result.because:
            seeds = f" ({why.seeds} seeds)" if why.seeds else ""
            groups.setdefault(CAUSES[why.cause], []).append(f"`{result.id}`{seeds}")
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    lines = [f"- {len(ids)}: {kind}{f': {listed(ids)}' if len(ids) <= FEW else ''}." for kind, ids in ordered]
    return "\n".join(["Inconclusive, and why:", "", *lines]) if lines else "No claim is inconclusive."


def contradictions(profile: str, results: Sequence[Result]) -> str:
    """What was claimed, what we saw, and why; claims with one explanation stand together."""
    contradicted = [result for result in results if result.verdict == "contradicted"]
    return _told(profile, contradicted, "Not explained yet.") or "No claim is contradicted."


def leaning(profile: str, results: Sequence[Result]) -> str:
    """Values whose mean lies beyond the margin while the interval still reaches into it, and what is known of them."""
    beyond = [result for result in results if _leans(result)]
    before = [result.id for result in results if result.verdict == "contradicted"]
    return (
        _told(profile, beyond, "For this we have no explanation.", before)
        or "No value: every mean of an undecided one lies within its margin."
    )


def allowing(profile: str, results: Sequence[Result]) -> str:
    """Accuracies whose margin is wide, because the study's own seeds scatter: what such a verdict is worth."""
    wide = [r for r in results if r.kind == "equivalence" and r.claim.quantity.metric == "test_accuracy"]
    wide = [r for r in wide if r.margin > WIDE and r.n]
    dead = [f"`{r.id}`" for r in wide if abs(r.expected - style.CHANCE) < r.margin]
    if not wide:
        return "No claim with runs has so wide a margin."
    note = f"\n\nEven chance, {style.CHANCE:g}, lies within the margin of {listed(dead)}." if dead else ""
    before = [result.id for result in results if result.verdict == "contradicted" or _leans(result)]
    return _told(profile, wide, "", before) + note


def _leans(result: Result) -> bool:
    """Undecided, but is the middle of the interval of (ours - published) outside the margin, at any layer?"""
    if result.verdict != "inconclusive" or result.kind != "equivalence" or not result.ci:
        return False
    intervals = result.ci if isinstance(result.ci[0], list) else [result.ci]
    return any(abs(low + high) / 2 > result.margin for low, high in intervals)


def _told(profile: str, results: Sequence[Result], unknown: str, before: Sequence[str] = ()) -> str:
    """Each claim with what explains it; `before` are claims whose explanations a reader has just seen."""
    explanations = load_explanations(load_claims())
    evidence = Evidence(Store(paths.profile_dir(profile)), profile)
    told: dict[str, list[str]] = {}
    for result in results:
        seen = f"Published: {published(result)}; ours: {observed(result)}; test: {test(result.claim)}."
        known = explanations.get(result.id) if result.verdict != "reproduced" else None
        seen_at = next((name for name in before if known and name in known.entry.claims), None)
        why = f"Explained above, under `{seen_at}`." if seen_at else known.told(evidence) if known else unknown
        told.setdefault(why, []).append(f"- `{result.id}`: {result.statement} {seen}")
    return "\n\n".join("\n".join(lines) + (f"\n\n{why}" if why else "") for why, lines in told.items())


def reach(profile: str, parts: Sequence[Runs], results: Sequence[Result]) -> str:
    """What this profile can and cannot show; `parts` are its sections, a ladder first, `results` its verdicts."""
    ladder = parts[0]
    seeds, epochs = len({spec.seed for spec in ladder.specs}), ladder.specs[0].epochs
    if profile == "smoke":
        return (
            "**This profile proves nothing.** It trains tiny networks on a few hundred pictures to show that the "
            "machinery runs; every claim about trained networks is therefore inconclusive."
        )
    if any(runs.missing for runs in parts):
        return _unfinished(profile, parts, results)
    if profile == "paper":
        return (
            f"These are the study's own shapes, {seeds} seeds and {epochs} epochs (fewer for the penalty): every "
            "claim can be tested, and one that stays inconclusive says what would decide it."
        )
    return (
        f"**A short run: {epochs} epochs and {seeds} seed{'' if seeds == 1 else 's'}, set by a time budget.** It "
        "can show shapes that do not depend on the budget (does BP rise with depth?), with the published spread "
        "standing in for missing seeds. It cannot test any published value of a trained network, nor "
        f"what needs time to grow. {_grown(ladder)} `make reproduce PROFILE=paper` runs the whole study."
    )


def _unfinished(profile: str, parts: Sequence[Runs], results: Sequence[Result]) -> str:
    asked = {spec for runs in parts for spec in runs.specs}
    missing = {spec for runs in parts for spec in runs.missing}
    states = [
        f"{runs.section.replace('_', ' ')} `{runs.set_name}` {len(runs.records)} of {len(runs.specs)}" for runs in parts
    ]
    time = _hours(list(missing), Store(paths.profile_dir(profile)).all())
    return (
        f"**Unfinished: {len(asked) - len(missing)} of {len(asked)} runs are there** ({', '.join(states)}; sections "
        f"share runs). Not yet trained, {time}: {collect.kinds(missing)}. {_waiting(results)} "
        f"`make reproduce PROFILE={profile}` trains the rest and renders everything anew."
    )


def _waiting(results: Sequence[Result]) -> str:
    """How many claims have no verdict for want of runs, and when they will get one."""
    waiting = sum(result.because is not None and result.because.cause == "missing runs" for result in results)
    if not waiting:
        return "No claim waits for them."
    return (
        f"{counted(waiting, 'claim waits', 'claims wait')} for runs: a published number or effect is decided once as "
        "many seeds are there as it was published with, and at least two; a shape as soon as its runs allow, with the "
        "published scatter in place of missing seeds."
    )


def _grown(ladder: Runs) -> str:
    full = [r for r in ladder.records if r.spec.method == "dfa" and r.spec.k == r.spec.depth]
    if not full:
        return "The explosion of DFA's scale takes longer."
    failing = sorted({name for record in full for name in metrics.failures(record)})
    if not failing:
        return f"After {full[0].spec.epochs} epochs DFA still passes D1 and D2."
    rest = [name for name in ("D1", "D2") if name not in failing]
    also = f" and still passes {rest[0]}" if rest else ""
    return f"After {full[0].spec.epochs} epochs DFA already fails {listed(failing)}{also}."


def cost(profile: str, ladder_sets: dict[str, Runs]) -> str:
    """Core-hours of everything and of the ladder, beside the study's."""
    records = Store(paths.profile_dir(profile)).all()
    runs = {record.spec: record for ladder in ladder_sets.values() for record in ladder.records}
    asked = {spec for ladder in ladder_sets.values() for spec in ladder.specs}
    if not runs:
        return "No run of the ladder has finished yet, so there is no cost to report."
    made = list(runs.values())
    core, wall = (_sum(made, name) for name in ("cpu_seconds", "wall_seconds"))
    busy = "; these did other work too, and with waiting for them" if wall > WAITED * core else ";"
    return (
        f"The ladder's {len(made)} of {len(asked)} runs took {core:.3g} core-hours of training and diagnostics on "
        f"{_cpus(made)}: {core / WORKERS:.3g} hours for each of {WORKERS} cores{busy} wall times add up to "
        f"{wall:.3g} hours, {wall / WORKERS:.3g} for each of {WORKERS} workers. The study reports {STUDY_LADDER} for "
        f"its 72. All {len(records)} records of this profile together took {collect.core_hours(records)}, and "
        f"{_sum(records, 'wall_seconds'):.3g} hours of wall time."
        f"{verified.told(profile, records, asked, WORKERS)}{_to_come(profile, records)}"
    )


def _sum(records: Sequence[Record], name: str) -> float:
    return sum(record.provenance[name] for record in records) / 3600


def _cpus(records: Sequence[Record]) -> str:
    return listed(sorted({collect.cpu_name(record.provenance.get("cpu", "")) for record in records}))


def _to_come(profile: str, records: Sequence[Record]) -> str:
    """What the unfinished part of a profile will take, at the speed of its own records."""
    missing = everything(profile).missing
    if not missing:
        return ""
    return f" {counted(len(missing), 'run is', 'runs are')} still to be trained, {_hours(missing, records)}."


def _hours(missing: Sequence[RunSpec], records: Sequence[Record]) -> str:
    hours = sum(cpu_seconds(spec, records) for spec in missing) / 3600
    cpu = usual_cpu(records)
    return f"about {hours:.2g} core-hours" + (f" of {collect.cpu_name(cpu)}" if cpu else "")
