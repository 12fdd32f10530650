"""`python -m creditaudit <verb>`: the same verbs as `make`, for people without it."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        if hasattr(options, "profile"):
            _check_profile(options.profile)
        status = _VERBS[options.verb](options) or 0
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # `... | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if (options.verb == "claims" and not options.strict) or getattr(options, "dry_run", False):
            return 0
        print("stopped, because nobody reads the output any more; the same command goes on", file=sys.stderr)
        return 141  # as a shell reports a closed pipe
    except _known_errors() as error:
        print(f"{type(error).__name__}: {error}" if isinstance(error, OSError) else error, file=sys.stderr)
        return getattr(error, "exit_code", 1)
    except KeyboardInterrupt:
        print("stopped; nothing that was finished is lost, the same command goes on", file=sys.stderr)
        return 130


def _check_profile(name: str) -> None:
    from creditaudit import params

    params.profile_entry(name)


def _known_errors() -> tuple[type[Exception], ...]:
    """Mistakes a person can mend get one message; anything else is a bug and shows its traceback."""
    from creditaudit import chapters, claimspec, fetch, notebooks, params, records, spec, sweep, verify, yamlfile

    return (
        spec.SpecError,
        yamlfile.YamlError,
        params.ParameterError,
        claimspec.ClaimsError,
        records.RecordError,
        notebooks.NotebookError,
        chapters.AppendixError,
        fetch.DataUnavailable,
        sweep.Interrupted,
        sweep.RunsFailed,
        sweep.WorkerKilled,
        sweep.NoDevice,
        verify.VerificationFailed,
        OSError,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m creditaudit", description=__doc__.replace("`", ""))
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="verb")
    for verb, (text, flags) in _HELP.items():
        sub = verbs.add_parser(verb, help=text, description=text)
        for flag in flags:
            names, settings = _FLAGS[flag]
            sub.add_argument(*names, **settings)
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


_WHAT = ("profile", "section", "set")
_HOW = ("jobs", "device", "dry")
_HELP = {
    "data": ("fetch CIFAR-10 into data/ and verify it", ()),
    "reproduce": ("train, run the notebooks, check the claims, render the appendix", (*_WHAT, *_HOW, "strict")),
    "train": ("only the training runs; finished ones are kept", (*_WHAT, *_HOW)),
    "notebooks": ("only run the notebooks over their parameter sets", _WHAT),
    "claims": ("print the verdict on every published claim", ("profile", "strict")),
    "appendix": ("render the appendix from the records, without training", ("profile",)),
    "verify-paper": ("retrain N committed runs of the paper profile and compare", ("section", "set", "n", "jobs")),
    "bench": ("measure the training step against the usual loops", ()),
}
_FLAGS = {
    "profile": (("--profile",), {"default": "quick", "help": "smoke, quick (default) or paper"}),
    "section": (("--section",), {"help": "one notebook only, e.g. depth_ladder"}),
    "set": (("--set",), {"help": "one parameter set only, e.g. d512_L2"}),
    "jobs": (
        ("--jobs",),
        {"type": _positive, "help": "worker processes (default: one per core)"},
    ),
    "device": (
        ("--device",),
        {
            "default": "cpu",
            "choices": ["cpu", "cuda"],
            "help": "cpu (default), or cuda: stacked runs, not tested on a GPU",
        },
    ),
    "dry": (("--dry-run",), {"action": "store_true", "help": "list what would be trained, with its cost"}),
    "strict": (("--strict",), {"action": "store_true", "help": "fail on a contradicted claim without explanation"}),
    "n": (("-n",), {"type": _positive, "default": 3, "help": "how many runs (default 3)"}),
}


def _data(options: argparse.Namespace) -> None:
    from creditaudit import fetch

    fetch.cifar10()


def _reproduce(options: argparse.Namespace) -> int:
    from creditaudit import pipeline

    if options.dry_run:
        return _train(options)
    pairs = pipeline.chosen(options.section, options.set)
    return pipeline.reproduce(options.profile, pairs, options.jobs, options.device, options.strict)


def _train(options: argparse.Namespace) -> int:
    from creditaudit import pipeline

    pairs = pipeline.chosen(options.section, options.set)
    if options.dry_run:
        pipeline.dry_run(options.profile, pairs, options.jobs)
    else:
        pipeline.train(options.profile, pairs, options.jobs, options.device)
    return 0


def _notebooks(options: argparse.Namespace) -> None:
    from creditaudit import pipeline

    pairs = pipeline.chosen(options.section, options.set)
    pipeline.run_notebooks(options.profile, pairs)
    if any(section == pipeline.OVERVIEW for section, _ in pairs):
        pipeline.overview(options.profile)


def _claims(options: argparse.Namespace) -> int:
    from creditaudit import claims

    return claims.run(options.profile, options.strict)


def _appendix(options: argparse.Namespace) -> int:
    from creditaudit import pipeline

    return pipeline.rerender(options.profile)


def _verify(options: argparse.Namespace) -> int:
    from creditaudit import pipeline, verify

    specs = pipeline.runs("paper", pipeline.chosen(options.section, options.set))
    return verify.verify("paper", specs, options.n, options.jobs)


def _bench(options: argparse.Namespace) -> None:
    from creditaudit import bench

    bench.run()


_VERBS = {
    "data": _data,
    "reproduce": _reproduce,
    "train": _train,
    "notebooks": _notebooks,
    "claims": _claims,
    "appendix": _appendix,
    "verify-paper": _verify,
    "bench": _bench,
}

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler's stop is told and resumed like Ctrl-C
    sys.exit(main())
