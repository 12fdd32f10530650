"""`make reproduce`, step by step: train what is missing, run the notebooks, check the claims, bind the appendix.

Every step looks at what is there and does only what is left, so the whole can be repeated at any time.
"""

from pathlib import Path

from creditaudit import (
    appendix,
    claims,
    claimspec,
    cost,
    explanations,
    fetch,
    identity_rows,
    notebooks,
    params,
    paths,
    protocol,
    readme,
    stamps,
    sweep,
    verified,
)
from creditaudit.chapters import AppendixError
from creditaudit.records import Store
from creditaudit.spec import RunSpec, SpecError
from creditaudit.yamlfile import nearest

OVERVIEW = "overview"  # read first, executed last: it shows the verdicts on all the others

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
    needed = [spec for pair in pairs for spec in protocol.runs_of(pair[0], params.parameters(*pair, profile))]
    return list(dict.fromkeys(needed))


def training_order(profile: str, pairs: Chosen) -> Chosen:
    """The ladder first, it is the heart of the study; then the cheapest section first."""

    def rank(pair: tuple[str, str]) -> tuple[bool, float]:
        return pair[0] != "depth_ladder", sum(cost.cpu_seconds(spec) for spec in runs(profile, [pair]))

    return sorted(pairs, key=rank)


def overruled(profile: str, pairs: Chosen) -> str | None:
    """What a person who edited a set file must know, if anything."""
    found = {"/".join(pair): params.overruled(*pair, profile) for pair in pairs}
    places = [f"{place} ({', '.join(names)})" for place, names in found.items() if names]
    return f"profile {profile} has the last word over what the set files say in {'; '.join(places)}" if places else None


def check(profile: str) -> None:
    """Refuse what is misspelt anywhere, before anything starts: in every section's parameters, claims, explanations."""
    for pair in chosen():
        try:
            runs(profile, [pair])
        except SpecError as error:
            raise params.ParameterError(f"params/{'/'.join(pair)}.yaml, profile {profile}: {error}") from None
    explanations.load_explanations(claimspec.load_claims())


def train(profile: str, pairs: Chosen, jobs: int | None = None, device: str = "cpu") -> None:
    check(profile)
    if note := overruled(profile, pairs):
        print(note)
    specs, store = runs(profile, training_order(profile, pairs)), Store(paths.profile_dir(profile))
    if any(spec.data == "cifar10" for spec in store.missing(specs)) or _unmeasured(profile, pairs):
        fetch.cifar10()
    trained = sweep.train_all(specs, store, jobs, device)
    print(f"training: {trained} runs trained, {len(specs) - trained} were there already")


def _unmeasured(profile: str, pairs: Chosen) -> bool:
    """Has an identity check, which trains nothing, still to look at the pictures?"""
    checks = [params.parameters(*pair, profile) for pair in pairs if pair[0] == "identity_check"]
    return any(
        asked["data"] == "cifar10"
        and not set(asked["seeds"]) <= identity_rows.stored(asked["width"], asked["depth"], profile).keys()
        for asked in checks
    )


def dry_run(profile: str, pairs: Chosen, jobs: int | None = None) -> None:
    """What `train` would do, and what it would cost."""
    if note := overruled(profile, pairs):
        print(note)
    specs, store = runs(profile, training_order(profile, pairs)), Store(paths.profile_dir(profile))
    jobs = jobs or sweep.cores()
    measured = store.all() or Store(paths.profile_dir("paper")).all()
    missing, cpu = store.missing(specs), cost.usual_cpu(measured)
    seconds = [cost.cpu_seconds(spec, measured) for spec in missing]
    for spec, second in zip(missing, seconds, strict=True):
        print(f"{spec.key:45s} about {second:6.0f} core-seconds")
    print(
        f"{len(missing)} of {len(specs)} runs to train: about {sum(seconds) / 3600:.1f} core-hours, "
        f"{sum(seconds) / 60 / jobs:.0f} minutes on {jobs} cores"
        + (f" like those of the records ({cpu})" if cpu else "")
    )


def run_notebooks(profile: str, pairs: Chosen) -> None:
    """All but the overview, which shows the verdicts and comes after them."""
    inputs = _read_by(pairs, profile)
    for pair in pairs:
        if pair[0] != OVERVIEW:
            notebooks.execute(*pair, profile, inputs=inputs[pair])


def overview(profile: str) -> None:
    everything = (paths.profile_dir(profile) / "runs").glob("*.json")  # it tells what they all cost
    shown = [paths.profile_dir(profile) / name for name in ("claims.json", "identity.json", verified.FILE)]
    asked = [*paths.PARAMS.rglob("*.yaml"), *paths.NOTEBOOKS.glob("*.ipynb")]  # it counts the runs these ask for
    notebooks.execute(OVERVIEW, params.DEFAULT_SET, profile, inputs=[*everything, *shown, *asked])


def reproduce(profile: str, pairs: Chosen, jobs: int | None = None, device: str = "cpu", strict: bool = False) -> int:
    """All steps; the appendix is bound when every notebook of it has been executed."""
    train(profile, pairs, jobs, device)
    # The other sections' pages, where they exist, are bound too, and must not be older than their records.
    run_notebooks(profile, [p for p in chosen() if p in pairs or notebooks.executed_path(*p, profile).exists()])
    status = claims.run(profile, strict)
    overview(profile)
    absent = [pair for pair in chosen() if not notebooks.executed_path(*pair, profile).exists()]
    if absent:
        print(f"no appendix yet: {', '.join('/'.join(pair) for pair in absent)} not executed in profile {profile}")
    else:
        bind(profile)
    return status


def bind(profile: str) -> None:
    """The appendix from the executed notebooks, and for the paper profile the numbers on the front page."""
    if profile == readme.PROFILE:
        readme.refresh()
    made = [notebooks.executed_path(*pair, profile) for pair in chosen()]
    looks = [path for path in (paths.PAPER / "templates").rglob("*") if path.is_file()]
    stamp = stamps.stamp([*made, paths.profile_dir(profile) / "claims.json", paths.PARAMS / "appendix.yaml", *looks])
    targets = appendix.output_paths(profile)
    if all(stamps.is_current(path, stamp) for path in targets):
        print("appendix: up to date")
        return
    for path in appendix.render(profile):
        stamps.remember(path, stamp)
        print(f"{paths.shown(path)}: {path.stat().st_size / 1e6:.1f} MB")


def rerender(profile: str) -> int:
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
    status = claims.run(profile)
    overview(profile)
    bind(profile)
    return status


def _read_by(pairs: Chosen, profile: str) -> dict[tuple[str, str], list[Path]]:
    """The records each section shows, and those of further seeds, which count in its verdicts."""
    store = Store(paths.profile_dir(profile))
    there = {store.path(record.spec): record.spec.but(seed=0) for record in store.all()}
    asked = {pair: {spec.but(seed=0) for spec in runs(profile, [pair])} for pair in pairs}
    return {pair: [path for path, spec in there.items() if spec in asked[pair]] for pair in pairs}
