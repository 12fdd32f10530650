"""`make reproduce`, step by step: train what is missing, run the notebooks, check the claims, bind the appendix.

Every step looks at what is there and does only what is left, so the whole can be repeated at any time.
"""

import json
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

from creditaudit import paths
from creditaudit.bind import appendix, notebooks, pages, stamps
from creditaudit.bind.appendix import AppendixError
from creditaudit.engine.spec import RunSpec, SpecError
from creditaudit.mistakes import Mistake
from creditaudit.runs import arrivals, cost, identity_rows, schedule
from creditaudit.runs.files import Unwritable, sweep_scratch, write_atomically
from creditaudit.runs.progress import Tally, heartbeat
from creditaudit.runs.records import Store
from creditaudit.runs.yamlfile import nearest
from creditaudit.study import certification, claims, claimspec, frames, injections, params, report, retraining, sections
from creditaudit.study.claimspec import Result

LAST = ("overview", "disagreements", "register")  # executed after the claims: they show the verdicts on all the others

Chosen = list[tuple[str, str]]


def chosen(section: str | None = None, set_name: str | None = None) -> Chosen:
    """The (section, set) pairs asked for, in reading order; everything by default."""
    if section is not None:
        params.source_path(section)  # refuses a misspelt section, naming the nearest
    pairs = [pair for pair in appendix.contents() if section in (None, pair[0]) and set_name in (None, pair[1])]
    if not pairs:
        if section and set_name is None:
            raise params.ParameterError(
                f"{section} is not in params/appendix.yaml, which says what is run and in which order"
            )
        known = params.sets(section) if section else {name for _, name in appendix.contents()}
        raise params.ParameterError(f"{section or 'any section'}: no set {set_name!r}{nearest(set_name, known)}")
    return pairs


def runs(profile: str, pairs: Chosen) -> list[RunSpec]:
    """Every run these sections need, each once."""
    needed = [spec for pair in pairs for spec in sections.runs_of(pair[0], params.parameters(*pair, profile))]
    return list(dict.fromkeys(needed))


def in_training_order(profile: str, pairs: Chosen) -> list[RunSpec]:
    """Every run these sections need: the ladder's first, it is the heart of the study; then the cheapest section's."""
    needed = {pair: runs(profile, [pair]) for pair in pairs}

    def rank(pair: tuple[str, str]) -> tuple[bool, float]:
        return pair[0] != "depth_ladder", sum(cost.cpu_seconds(spec) for spec in needed[pair])

    return list(dict.fromkeys(spec for pair in sorted(pairs, key=rank) for spec in needed[pair]))


def _asked(profile: str, pairs: Chosen, part: tuple[int, int] | None) -> list[RunSpec]:
    """The runs, or a part of them; a person who edited a set file is told where that changes nothing."""
    found = {"/".join(pair): params.overruled(*pair, profile) for pair in pairs}
    if places := [f"{place} ({', '.join(names)})" for place, names in found.items() if names]:
        print(f"profile {profile} has the last word over what the set files say in {'; '.join(places)}")
    specs = in_training_order(profile, pairs)
    return schedule.shard(specs, *part) if part else specs


def check(profile: str) -> None:
    """Refuse what is misspelt anywhere, before anything starts: in every section's parameters, in the claims."""
    for pair in chosen():
        try:
            runs(profile, [pair])
        except SpecError as error:
            raise params.ParameterError(f"params/{'/'.join(pair)}.yaml, profile {profile}: {error}") from None
    claimspec.load_claims()


def train(
    profile: str,
    pairs: Chosen,
    jobs: int | None = None,
    device: str = "cpu",
    executor: str | None = None,
    part: tuple[int, int] | None = None,
) -> None:
    check(profile)
    specs, store, trained = _asked(profile, pairs, part), Store(paths.profile_dir(profile)), 0
    missing = store.missing(specs)
    needed_here = executor is None and any(spec.data == "cifar10" for spec in missing)
    if needed_here or _unmeasured(profile, pairs):
        from creditaudit.runs import fetch

        fetch.cifar10()
    if missing:
        print(f"training: {len(missing)} runs to train, {len(specs) - len(missing)} are there already", flush=True)
        from creditaudit.runs import sweep  # late: torch takes seconds

        measured = certification.committed_records(profile)
        crew = partial(_dask_crew, executor, jobs) if executor else None
        trained = sweep.train_all(specs, store, jobs, device, crew, part, measured)
    others = f"{len(specs) - trained} were there already" + (f" (part {part[0]} of {part[1]})" if part else "")
    print(f"training: {trained} runs trained, {others}")


def _dask_crew(name: str, jobs: int | None, task: Callable[..., str]) -> Any:
    try:
        from creditaudit.runs.cluster import DaskCrew  # late: an extra, which need not be there
    except ImportError as error:
        needs = "needs the packages of requirements-cluster.lock: `make cluster` installs them"
        raise Mistake(f"EXECUTOR={name} {needs}") from error
    return DaskCrew(task, name.removeprefix("dask").removeprefix("://"), jobs)


def collect(folder: Path, profile: str) -> int:
    """Take the records that another machine made; 1 where some were refused."""
    asked = {spec.but(seed=0) for spec in runs(profile, chosen())}
    found = arrivals.collect(folder, Store(paths.profile_dir(profile)), lambda spec: spec.but(seed=0) in asked)
    for reason in found.refused:
        print(f"not taken: {reason}")
    there = f"{len(found.there_already)} were there already with the same numbers"
    print(f"{len(found.taken)} records taken, {there}, {len(found.refused)} not taken")
    return 1 if found.refused else 0


def _unmeasured(profile: str, pairs: Chosen) -> bool:
    """Has an identity check, which trains nothing, still to look at the pictures?"""
    checks = [params.parameters(*pair, profile) for pair in pairs if pair[0] == "identity_check"]
    return any(
        asked["data"] == "cifar10"
        and not set(asked["seeds"]) <= identity_rows.stored(asked["width"], asked["depth"], profile).keys()
        for asked in checks
    )


def dry_run(profile: str, pairs: Chosen, jobs: int | None = None, part: tuple[int, int] | None = None) -> None:
    """What `train` would do, and what it would cost."""
    specs, there = _asked(profile, pairs, part), Store(paths.profile_dir(profile)).all()
    jobs = jobs or cost.cores()
    measured = there or certification.committed_records(profile) or Store(paths.profile_dir("paper")).all()
    trained, cpu = {record.spec for record in there}, cost.usual_cpu(measured)
    missing = [spec for spec in specs if spec not in trained]
    seconds = [cost.cpu_seconds(spec, measured) for spec in missing]
    for spec, second in zip(missing, seconds, strict=True):
        print(f"{spec.key:45s} about {second:6.0f} core-seconds")
    print(
        f"{len(missing)} of {len(specs)} runs to train: about {sum(seconds) / 3600:.1f} core-hours, "
        f"{sum(seconds) / 60 / jobs:.0f} minutes on {jobs} cores"
        + (f" like those of the records ({cpu})" if cpu else "")
    )


def run_notebooks(profile: str, pairs: Chosen) -> None:
    """All but those that show the verdicts of all sections, and come after them; side by side, one per core."""
    inputs = _read_by(pairs, profile)
    sweep_scratch(paths.profile_dir(profile))
    first = sorted(pairs, key=lambda pair: (bool(inputs[pair]), pair[0] != "audit_your_own"))  # what computes, first
    _side_by_side("notebooks", profile, {pair: inputs[pair] for pair in first if pair[0] not in LAST})


def _side_by_side(what: str, profile: str, inputs: dict[tuple[str, str], list[Path]]) -> None:
    tally = Tally(what, len(inputs))

    def execute(pair: tuple[str, str]) -> None:
        notebooks.execute(*pair, profile, inputs=inputs[pair])
        tally.done += 1

    pool = ThreadPoolExecutor(cost.cores())  # threads: the kernels do the work
    try:
        with heartbeat(tally.status):
            executed = [pool.submit(execute, pair) for pair in inputs]
            for each in as_completed(executed):
                if isinstance(error := each.exception(), Unwritable):
                    raise error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    for each in executed:
        each.result()  # one that failed did not keep the others from being executed


def run_last(profile: str, wanted: Collection[str] = LAST) -> None:
    """The notebooks that read the claims and records of all sections."""
    everything = (paths.profile_dir(profile) / "runs").glob("*.json")  # they tell what they all cost
    names = ("claims.json", "identity.json", retraining.FILE, injections.FILE, certification.FILE)
    shown = [paths.profile_dir(profile) / name for name in names]
    asked = [*paths.PARAMS.rglob("*.yaml"), *paths.NOTEBOOKS.glob("*.ipynb")]  # they count the runs these ask for
    inputs = [*everything, *shown, *asked]
    _side_by_side("last notebooks", profile, {(name, params.DEFAULT_SET): inputs for name in LAST if name in wanted})


def reproduce(
    profile: str,
    pairs: Chosen,
    jobs: int | None = None,
    device: str = "cpu",
    strict: bool = False,
    executor: str | None = None,
) -> int:
    """All steps; the appendix is bound when every notebook of it has been executed."""
    train(profile, pairs, jobs, device, executor)
    # The other sections' pages, where they exist, are bound too, and must not be older than their records.
    run_notebooks(profile, [p for p in chosen() if p in pairs or pages.executed_path(*p, profile).exists()])
    results = judge(profile)
    certificate = certification.issue(profile)
    run_last(profile)
    status = strictly(profile, results) if strict else 0
    absent = [pair for pair in chosen() if not pages.executed_path(*pair, profile).exists()]
    if absent:
        print(f"no appendix yet: {', '.join('/'.join(pair) for pair in absent)} not executed in profile {profile}")
    else:
        bind(profile)
    if certificate:
        print(*certificate.lines(), sep="\n")
        status = max(status, int(certificate.verdict == "differs"))
    return status


def judge(profile: str) -> list[Result]:
    """Check every claim and every prediction of ours, print the verdicts, and write them down."""
    runs = frames.comparable(profile)
    results, own = claims.check(claimspec.load_claims(), runs), claims.predictions(profile, runs=runs)
    for name, found in (("claims", results), ("predictions", own)):
        lines = json.dumps([result.to_json() for result in found], indent=1, sort_keys=True, allow_nan=False)
        write_atomically(paths.profile_dir(profile) / f"{name}.json", lines + "\n")
    report.print_table(results)
    decided = any(result.verdict != "inconclusive" for result in own)
    verdicts = report.counted(own) if decided else "none can be decided by these runs"
    print(f"\nOur own {len(own)} predictions: {verdicts}.")
    return results


def strictly(profile: str, results: Iterable[Result]) -> int:
    """1 where a finding on the executed pages fails, or a contradicted claim is named by none that holds."""
    found = list(pages.findings(profile))
    problems = [f"{page}: {' '.join(text.split())}" for page, state, text in found if state == "fails"]
    held = "\n".join(text for _, state, text in found if state == "holds")
    contradicted = [result.id for result in results if result.verdict == "contradicted"]
    problems += [
        f"{name} is contradicted, and no finding that holds names it: say why, with its id in backticks, in "
        f"notebooks/disagreements.ipynb, then `make notebooks PROFILE={profile}`"
        for name in contradicted
        if f"`{name}`" not in held
    ]
    for problem in problems:
        print(f"STRICT: {problem}")
    if not problems:
        print(f"STRICT: none of {len(found)} findings fails; they name every contradicted claim ({len(contradicted)})")
    return 1 if problems else 0


def bind(profile: str) -> None:
    """The appendix from the executed notebooks."""
    made = [pages.executed_path(*pair, profile) for pair in chosen()]
    looks = [path for path in (paths.PAPER / "templates").rglob("*") if path.is_file()]
    stamp = stamps.stamp([*made, paths.profile_dir(profile) / "claims.json", paths.PARAMS / "appendix.yaml", *looks])
    targets = appendix.output_paths(profile)
    if all(stamps.is_current(path, stamp) for path in targets):
        print("appendix: up to date")
        return
    with heartbeat(lambda: "appendix: rendering"):
        made = appendix.render(profile)
    for path in made:
        stamps.remember(path, stamp)
        print(f"{paths.shown(path)}: {path.stat().st_size / 1e6:.1f} MB")


def rerender(profile: str) -> None:
    """From the records alone, without training: notebooks, claims, appendix."""
    check(profile)
    pairs = chosen()
    there = _read_by(pairs, profile)
    untrained = ["/".join(pair) for pair in pairs if runs(profile, [pair]) and not there[pair]]
    if untrained:
        raise AppendixError(
            f"profile {profile} has no run at all of {', '.join(untrained)}, so there is nothing to render: "
            f"`make reproduce PROFILE={profile}` trains first"
        )
    run_notebooks(profile, pairs)
    judge(profile)
    run_last(profile)
    bind(profile)


def _read_by(pairs: Chosen, profile: str) -> dict[tuple[str, str], list[Path]]:
    """The records each section shows, and those of further seeds, which count in its verdicts."""
    store = Store(paths.profile_dir(profile))
    there = {store.path(record.spec): record.spec.but(seed=0) for record in store.all()}
    asked = {pair: {spec.but(seed=0) for spec in runs(profile, [pair])} for pair in pairs}
    return {pair: [path for path, spec in there.items() if spec in asked[pair]] for pair in pairs}
