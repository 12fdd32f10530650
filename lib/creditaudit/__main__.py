"""`python -m creditaudit <verb>`: the same verbs as `make`, for people without it."""

import argparse
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, ModuleType

STOPS = (signal.SIGINT, signal.SIGTERM)  # a scheduler's stop is told and resumed like Ctrl-C
STOPPED = "stopped; nothing that was finished is lost, the same command goes on"
PATIENCE = 3.0  # seconds in which a second Ctrl-C asks for nothing new
TIDYING = 5.0  # seconds that workers and threads get to end by themselves


class _Stop:
    """Ctrl-C, or a scheduler's SIGTERM: once a KeyboardInterrupt, however often the key is pressed."""

    def __init__(self) -> None:
        self.asked = -PATIENCE

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if _is_importing(frame):  # nothing is under way, and an exception could surface as any error: leave at once
            os.write(2, f"{STOPPED}\n".encode())
            os._exit(130)
        now = time.monotonic()
        if now - self.asked >= PATIENCE:
            self.asked = now
            raise KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


_stop = _Stop()
if __name__ == "__main__":
    for number in STOPS:
        signal.signal(number, _stop)
    sys.stdout.reconfigure(line_buffering=True)  # into a file or a pipe too, a sign of life is to be seen at once

from creditaudit.mistakes import Mistake  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        options = _parser().parse_args(arguments)
        status = _VERBS[options.verb](options, _pipeline(options)) or 0
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # `... | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if (options.verb == "claims" and not options.strict) or getattr(options, "dry_run", False):
            return 0
        print("stopped, because nobody reads the output any more; the same command goes on", file=sys.stderr)
        return 141  # as a shell reports a closed pipe
    except (Mistake, OSError) as error:
        print(f"{type(error).__name__}: {error}" if not isinstance(error, Mistake) else error, file=sys.stderr)
        return getattr(error, "exit_code", 1)
    except KeyboardInterrupt:
        print(STOPPED, file=sys.stderr)
        return 130
    except Exception as error:
        if time.monotonic() - _stop.asked >= PATIENCE:
            if not isinstance(error, ModuleNotFoundError):
                raise
            print(f"{error}: `make setup` installs it, and so does `pip install -e '.[reproduce]'`", file=sys.stderr)
            return 1
        print(STOPPED, file=sys.stderr)  # torch and others turn an interrupted import into errors of their own
        return 130


def _leave(status: int) -> None:
    """Exit; after a stop without further ado, and soon, whatever threads and workers are still doing."""
    if status == 130:
        for each in STOPS:
            signal.signal(each, signal.SIG_IGN)
        last = threading.Timer(TIDYING, os._exit, (status,))
        last.daemon = True
        last.start()
    sys.exit(status)


def _pipeline(options: argparse.Namespace) -> ModuleType:
    """Imported here, in a clone alone: an installation need not have what it needs."""
    from creditaudit import paths

    if not paths.NOTEBOOKS.is_dir():
        raise Mistake(
            f"{paths.ROOT} holds no notebooks to run: the verbs work in a clone of the repository (`make help` there); "
            "installed alone, this package is for `from creditaudit import audit`"
        )
    from creditaudit import pipeline

    if hasattr(options, "profile"):
        pipeline.params.profile_entry(options.profile)
    return pipeline


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m creditaudit", description=__doc__.replace("`", ""))
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="verb")
    for verb, (text, flags) in _HELP.items():
        sub = verbs.add_parser(verb, help=text, description=text)
        for flag in flags:
            name, settings = _FLAGS[flag]
            sub.add_argument(name, **settings)
    return parser


def _executor(text: str) -> str:
    if not re.fullmatch(r"dask(://[^\s/]+:\d+)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is neither dask nor dask://HOST:PORT")
    return text


def _part(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    part, parts = map(int, found.groups()) if found else (0, 0)
    if not 1 <= part <= parts:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 3/8, from 1/8 to 8/8")
    return part, parts


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


_WHAT = ("profile", "section", "set")
_HOW = ("jobs", "device", "executor", "dry")
_HELP = {
    "data": ("fetch CIFAR-10 into data/ and verify it", ()),
    "reproduce": ("train, run the notebooks, check the claims, render the appendix", (*_WHAT, *_HOW, "strict")),
    "train": ("only the training runs; finished ones are kept", (*_WHAT, *_HOW, "shard")),
    "collect": ("take the records that another machine made", ("folder", "profile")),
    "notebooks": ("only run the notebooks over their parameter sets", _WHAT),
    "claims": ("print the verdict on every published claim", ("profile", "strict")),
    "appendix": ("render the appendix from the records, without training", ("profile",)),
    "certificate": ("compare the runs trained here with the committed ones", ("profile", "run")),
    "lab": ("open copies of the notebooks in JupyterLab, to play with", ("section", "set", "shown")),
    "verify-paper": ("retrain N committed runs of the paper profile and compare", ("section", "set", "n", "jobs")),
}
_FLAGS = {
    "profile": ("--profile", {"default": "quick", "help": "smoke, quick (default) or paper"}),
    "section": ("--section", {"help": "one notebook only, e.g. depth_ladder"}),
    "set": ("--set", {"help": "one parameter set only, e.g. d512_L2"}),
    "jobs": ("--jobs", {"type": _positive, "help": "worker processes (default: one per core)"}),
    "device": ("--device", {"default": "cpu", "choices": ["cpu", "cuda"],
                            "help": "cpu (default), or cuda: stacked runs, not tested on a GPU"}),
    "executor": ("--executor", {"type": _executor, "help": "dask, or dask://HOST:PORT (default: processes here)"}),
    "shard": ("--shard", {"type": _part, "metavar": "I/N", "help": "the runs of part I of N, e.g. 3/8"}),
    "folder": ("folder", {"type": Path, "help": "holds records of the other machine, e.g. its outputs/paper"}),
    "dry": ("--dry-run", {"action": "store_true", "help": "list what would be trained, with its cost"}),
    "strict": ("--strict", {"action": "store_true", "help": "fail on what is unexplained, or a failed finding"}),
    "run": ("--run", {"metavar": "KEY", "help": "every number in which this run differs"}),
    "shown": ("--profile", {"default": "paper", "help": "whose values stand in the section's first cell (paper)"}),
    "n": ("-n", {"type": _positive, "default": 3, "help": "how many runs (default 3)"}),
}


def _data(options: argparse.Namespace, pipeline: ModuleType) -> None:
    from creditaudit.runs import fetch

    fetch.cifar10()


def _reproduce(options: argparse.Namespace, pipeline: ModuleType) -> int:
    if options.dry_run:
        return _train(options, pipeline)
    how = options.jobs, options.device, options.strict, options.executor
    status = pipeline.reproduce(options.profile, pipeline.chosen(options.section, options.set), *how)
    from creditaudit import readme  # late: it draws its tables as the notebooks do

    readme.refresh(options.profile)
    return status


def _train(options: argparse.Namespace, pipeline: ModuleType) -> int:
    pairs = pipeline.chosen(options.section, options.set)
    if options.dry_run:
        pipeline.dry_run(options.profile, pairs, options.jobs, getattr(options, "shard", None))
    else:
        pipeline.train(options.profile, pairs, options.jobs, options.device, options.executor, options.shard)
    return 0


def _collect(options: argparse.Namespace, pipeline: ModuleType) -> int:
    return pipeline.collect(options.folder, options.profile)


def _notebooks(options: argparse.Namespace, pipeline: ModuleType) -> None:
    pairs = pipeline.chosen(options.section, options.set)
    pipeline.run_notebooks(options.profile, pairs)
    pipeline.run_last(options.profile, {section for section, _ in pairs})


def _claims(options: argparse.Namespace, pipeline: ModuleType) -> int:
    results = pipeline.judge(options.profile)
    return pipeline.strictly(options.profile, results) if options.strict else 0


def _appendix(options: argparse.Namespace, pipeline: ModuleType) -> None:
    from creditaudit import readme

    pipeline.rerender(options.profile)
    readme.refresh(options.profile)


def _certificate(options: argparse.Namespace, pipeline: ModuleType) -> int:
    certification = pipeline.certification
    if options.run:
        for place, committed, here in certification.differences(options.profile, options.run):
            print(f"{place}: committed {committed}, here {here}")
        return 0
    issued = certification.issue(options.profile)
    if issued is None:
        raise Mistake(f"profile {options.profile} has no committed reference to compare with")
    print(*issued.lines(), sep="\n")
    return int(issued.verdict == "differs")


def _lab(options: argparse.Namespace, pipeline: ModuleType) -> int:
    from creditaudit.lab import server

    return server.open_lab(options.section, options.set, options.profile)


def _verify_paper(options: argparse.Namespace, pipeline: ModuleType) -> int:
    from creditaudit import verify

    specs = pipeline.runs("paper", pipeline.chosen(options.section, options.set))
    return verify.verify("paper", specs, options.n, options.jobs)


_VERBS = {verb: globals()["_" + verb.replace("-", "_")] for verb in _HELP}

if __name__ == "__main__":
    _leave(main())
