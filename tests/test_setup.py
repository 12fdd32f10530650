"""Set-up: one lock behind every front door, and one clear sentence for each way to fail."""

import os
import re
import shlex
import shutil
import subprocess
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from creditaudit.paths import ROOT

LOCK = (ROOT / "requirements.lock").read_text()
TOOLS = ("bash", "dirname", "awk", "df", "grep", "tail", "mkdir", "touch")


def script(path, text):
    path.unlink(missing_ok=True)  # never write through a link to the real tool
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


@pytest.fixture
def setup(tmp_path):
    """Run tools/setup.sh with nothing on PATH but a few tools and what the test put into tmp_path/bin."""
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))

    def run():
        return subprocess.run(
            ["bash", str(ROOT / "tools/setup.sh"), str(tmp_path / "venv")],
            env={"PATH": str(tmp_path / "bin")},
            capture_output=True,
            text=True,
        )

    return run


def one_sentence(done):
    assert done.returncode == 1
    assert done.stderr.startswith("set-up stopped: ") and done.stderr.count("\n") == 1
    return done.stderr


def good_python(folder, pip):
    """A stand-in for Python 3.11 whose environments have a pip that runs the shell text `pip`."""
    inner = f'case "$*" in *--version*) exit 1;; *) {pip};; esac\n'
    make = f"mkdir -p $3/bin; cat > $3/bin/python <<'E'\n#!/bin/sh\n{inner}E\nchmod +x $3/bin/python"
    script(folder / "python3", f'case "$1" in -c) exit 0;; esac\n{make}\n')
    for tool in ("cat", "chmod"):
        (folder / tool).symlink_to(shutil.which(tool))


def test_too_old_a_python(setup, tmp_path):
    script(tmp_path / "bin/python3", '[ "$1" = --version ] && echo Python 3.8.10 || exit 1\n')
    assert "needs Python 3.11 or newer, found 3.8.10" in one_sentence(setup())


def test_no_python(setup):
    assert "needs Python 3.11 or newer, found none" in one_sentence(setup())


def test_no_disk(setup, tmp_path):
    good_python(tmp_path / "bin", "exit 0")
    script(tmp_path / "bin/df", "echo header; echo /dev/x 9 9 2097152 99% /\n")
    assert "needs 7 GB of free disk" in (text := one_sentence(setup())) and "has 2 GB" in text


@pytest.mark.parametrize(
    ("pip_says", "sentence"),
    [
        ("Failed to establish a new connection: [Errno 111] Connection refused", "no network"),
        ("Temporary failure in name resolution", "no network"),
        ("OSError: [Errno 28] No space left on device", "the disk filled up"),
        ("THESE PACKAGES DO NOT MATCH THE HASHES FROM", "not the one that requirements.lock"),
        ("SSL: CERTIFICATE_VERIFY_FAILED", "SSL_CERT_FILE="),
        ("something new", "getting uv failed: something new"),
    ],
)
def test_pip_fails(setup, tmp_path, pip_says, sentence):
    good_python(tmp_path / "bin", f'echo "{pip_says}" >&2; exit 1')
    script(tmp_path / "bin/df", "echo header; echo /dev/x 9 9 99999999 9% /\n")
    assert sentence in one_sentence(setup())


def test_a_certificate_that_only_the_system_knows(setup, tmp_path):
    """Behind a company's proxy uv's own list of authorities is not enough."""
    uv = 'case "$UV_SYSTEM_CERTS$*" in 1*|*--offline*) exit 0;; esac; echo invalid peer certificate >&2; exit 1'
    good_python(tmp_path / "bin", f'echo {shlex.quote(uv)} > "${{0%python}}uv"; chmod +x "${{0%python}}uv"')
    script(tmp_path / "bin/df", "echo header; echo /dev/x 9 9 99999999 9% /\n")
    done = setup()
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "venv/.complete").exists()


def test_a_long_download_says_how_far_it_is(tmp_path):
    """From uv's lines; not a word where there is nothing to tell."""
    function = re.search(r"^arrived\(\) \{.*?^\}", (ROOT / "tools/setup.sh").read_text(), re.M | re.S)[0]

    def arrived(log: str) -> str:
        (tmp_path / "log").write_text(log)
        script = f"venv=/nowhere log=log; {function}; arrived 30"
        return subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True).stdout

    begun = "Resolved 3 packages\nDownloading torch (900.0MiB)\nDownloading numpy (100.0MiB)\n"
    assert arrived("") == "" and arrived("Resolved 3 packages\n") == ""
    assert arrived(begun) == ", 0 of 1050 MB downloaded"
    assert arrived(begun + " Downloaded numpy\n") == ", 105 of 1050 MB downloaded, about 270 s left"
    assert "downloaded" in (said := arrived(begun + "Prepared 3 packages in 9s\n")) and "MB" not in said


def locked(python: str) -> dict[str, str]:
    """Every package of the lock that this Python gets on Linux, with its version."""
    lines = [line.rstrip(" \\") for line in LOCK.splitlines() if re.match(r"[\w.-]+==", line)]
    needs, here = map(Requirement, lines), {"python_version": python, "python_full_version": f"{python}.0"}
    kept = [need for need in needs if need.marker is None or need.marker.evaluate(here)]
    return {canonicalize_name(need.name): str(need.specifier).removeprefix("==") for need in kept}


CONDA_NAMES = {"pytorch-cpu": "torch", "matplotlib-base": "matplotlib", "seaborn-base": "seaborn"}
ONLY_FOR_SETUP = {"setuptools", "uv"}  # what tools/setup.sh makes an environment with


def test_environment_yml_has_a_torch_for_the_cpu_and_the_releases_of_the_lock():
    *conda, pip, last = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert pip == "pip" and last["pip"].pop() == "-e ."  # brings nothing more: what it declares is all above it
    releases = dict(entry.split("=") for entry in conda)
    lock, wheels = locked(releases.pop("python")), dict(entry.split("==") for entry in last["pip"])
    releases = {CONDA_NAMES.get(name, name): release for name, release in releases.items()}
    assert "torch" in releases and not {"torch", "torchvision"} & wheels.keys()
    assert all(f"{lock[name]}.".startswith(f"{release}.") for name, release in releases.items())
    wheels = {canonicalize_name(name): version for name, version in wheels.items()}
    assert all(lock[name] == version for name, version in wheels.items())
    wanted = {canonicalize_name(Requirement(line).name) for line in (ROOT / "requirements.in").read_text().split()}
    assert wanted - releases.keys() - wheels.keys() == ONLY_FOR_SETUP
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {Requirement(line).name for line in declared} <= releases.keys()


def test_lock_is_hashed_complete_and_names_no_index():
    pins = re.findall(r"^([\w.-]+)==\S+(.*?)(?=^\S|\Z)", LOCK, re.M | re.S)
    assert len(pins) > 50 and all("--hash=sha256:" in rest for _, rest in pins)
    assert not re.search(r"https?://|--(extra-)?index-url|--find-links", LOCK)
    locked = {name.lower().replace("_", "-") for name, _ in pins}
    wanted = {re.split(r"[=<>~]", line)[0] for line in (ROOT / "requirements.in").read_text().split()}
    assert {name.replace("_", "-") for name in wanted} <= locked


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("cluster", {"dask", "distributed"}), ("browser", {"playwright"}), ("biotorch", {"biotorch"})],
)
def test_the_lock_of_an_extra_is_hashed_and_agrees_with_the_lock(name, wanted):
    pinned = re.compile(r"^([\w.-]+)==([^\s;]+)(.*?)(?=^\S|\Z)", re.M | re.S)
    extra = pinned.findall((ROOT / f"requirements-{name}.lock").read_text())
    base = {name: version for name, version, _ in pinned.findall(LOCK)}
    assert wanted <= {name for name, _, _ in extra}
    assert all("--hash=sha256:" in rest and base.get(name, version) == version for name, version, rest in extra)


def test_torch_and_torchvision_are_the_pair_that_was_tested():
    assert re.search(r"^torch==2\.14\.", LOCK, re.M) and re.search(r"^torchvision==0\.29\.", LOCK, re.M)


def make(*arguments):
    """make's output, free of variables that an outer make may have exported."""
    bare = {"PATH": os.environ["PATH"]}
    return subprocess.run(["make", *arguments], cwd=ROOT, env=bare, capture_output=True, text=True).stdout


def test_make_help_is_the_default_and_lists_every_target():
    shown = make()
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)[1].split()
    assert {"setup", "data", "reproduce", "train", "notebooks", "appendix", "claims", "test"} < set(targets)
    for target in targets:
        assert re.search(rf"^  {target} +\S", shown, re.M), target


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("reproduce SECTION=audit SET=a JOBS=2", "--profile quick --section audit --set a --jobs 2"),
        ("train PROFILE=paper", "train --profile paper"),
        ("train EXECUTOR=dask://host:1 SHARD=3/8", "--executor dask://host:1 --shard 3/8"),
        ("collect FOLDER=there PROFILE=paper", "collect there --profile paper"),
        ("claims STRICT=1", "claims --profile quick --strict"),
        ("verify-paper N=3", "verify-paper -n 3"),
    ],
)
def test_make_passes_its_variables_on(command, expected):
    assert expected in " ".join(make("-n", *command.split()).replace('"', "").split())


@pytest.mark.parametrize("off", ["0", "no", "false", ""])
def test_strict_can_be_switched_off(off):
    assert "--strict" not in make("-n", "claims", f"STRICT={off}")


def test_make_keeps_a_name_with_a_space_together():
    assert '--set "my set"' in make("-n", "train", "SET=my set")


def test_lab_runs_the_folder_s_own_code(tmp_path):
    """Wherever the environment was made, and with a profile only where one was asked for."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    script(tmp_path / ".venv" / "bin" / "python", 'echo "$PYTHONPATH: $*"\n')
    touched = [f"-o{name}" for name in (".venv/.complete", "requirements.lock", "pyproject.toml", "tools/setup.sh")]

    def lab(*arguments: str) -> str:
        run = ["make", "lab", *arguments, *touched]
        bare = {"PATH": os.environ["PATH"]}
        done = subprocess.run(run, cwd=tmp_path, env=bare, capture_output=True, text=True)
        return " ".join(done.stdout.splitlines()[0].split())

    assert lab() == f"{tmp_path}/lib: -m creditaudit lab"
    asked = "lab --section audit --set a --profile quick"
    assert lab("SECTION=audit", "SET=a", "PROFILE=quick") == f"{tmp_path}/lib: -m creditaudit {asked}"


def test_citation_names_the_study():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    study = citation["references"][0]
    assert [a["family-names"] for a in study["authors"]] == ["Hao", "Wan", "Zhai"]
    assert study["identifiers"][0]["value"] == "arXiv:2606.21126"
