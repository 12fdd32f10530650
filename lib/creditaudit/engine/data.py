"""CIFAR-10 in memory, and the batches every method sees.

The pictures stay uint8, [N, 3, 32, 32], read through a memory map so that all worker processes share one
copy. A batch of 128 is cropped, flipped and normalised in a single pass by one small compiled kernel, about
0.2 ms on one core (the same with torch gathers: 0.5 to 2 ms). It is bit-equal to torchvision's pad, crop,
hflip, ToTensor and Normalize, because normalisation is a table: a byte has 256 values, and the 3 x 256
float32 results are computed once with the same arithmetic. (torchvision's newer v2.ToDtype multiplies by
1/255 where ToTensor divides by 255; they differ in the last bit of half the values. We follow ToTensor.)

An epoch is a pure function of (seed, epoch): `epoch_plan` draws order, crop and flip from a
counter-based generator. A resumed run needs no generator state, and all methods with one seed see the
same batches.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numba
import numpy as np
import torch
from PIL import Image

from creditaudit.engine.pictures import CLASSES, HELD_OUT, PIXELS, TRAIN_PICTURES
from creditaudit.paths import DATA

MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
PAD = 4  # black pixels on each side before the crop, so offsets are 0 .. 2 * PAD
PLAN_TAG, LABELS_TAG = 0x706C616E, 0x6C61626C  # keep their streams apart from other uses of the same seed

TINY = Path(__file__).parent / "assets" / "tiny.png"  # real CIFAR-10 pictures for tests without a network


@dataclass(frozen=True)
class Dataset:
    """Pictures uint8 [N, 3, 32, 32], labels int64 [N]."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load(name: str, train_size: int | None = None, test_size: int | None = None, validation: bool = False) -> Dataset:
    """The first `train_size` and `test_size` pictures of "cifar10" or "tiny" (None: all of them).

    For validation the last training pictures stand in for the test pictures, which nobody then sees.
    """
    readers = {"cifar10": _read_cifar10, "tiny": _read_tiny}
    if name not in readers:
        raise ValueError(f"data: {name!r} is none of {', '.join(readers)}")
    train_images, train_labels, test_images, test_labels = readers[name]()
    if validation:
        kept, held = slice(None, -HELD_OUT[name]), slice(-HELD_OUT[name], None)
        test_images, test_labels = train_images[held], train_labels[held]
        train_images, train_labels = train_images[kept], train_labels[kept]
    train = _first("train_size", train_size, len(train_labels))
    test = _first("test_size", test_size, len(test_labels))
    return Dataset(train_images[:train], train_labels[:train], test_images[:test], test_labels[:test])


def _first(field: str, size: int | None, available: int) -> int:
    if size is not None and not 1 <= size <= available:
        raise ValueError(f"{field}: {size} is outside 1 .. {available}")
    return available if size is None else size


def _read_cifar10() -> tuple[np.ndarray, ...]:
    pictures, labels = DATA / "cifar10" / "pictures.npy", DATA / "cifar10" / "labels.npy"
    if not (pictures.exists() and labels.exists()):
        raise FileNotFoundError("CIFAR-10 is not in data/cifar10: run `make data` first")
    try:
        x = np.asarray(np.load(pictures, mmap_mode="r"))  # a plain array over the shared map
        y = np.load(labels)
    except (ValueError, EOFError) as error:
        raise OSError("data/cifar10 holds a damaged file: `make data` repairs it") from error
    n = TRAIN_PICTURES["cifar10"]
    return x[:n], y[:n], x[n:], y[n:]


def _read_tiny() -> tuple[np.ndarray, ...]:
    """assets/tiny.png: 39 rows of 20 pictures; classes take turns, so picture i has label i % 10."""
    sheet = np.asarray(Image.open(TINY)).reshape(39, 32, 20, 32, 3)
    x = np.ascontiguousarray(sheet.transpose(0, 2, 4, 1, 3)).reshape(-1, 3, 32, 32)
    y = np.arange(len(x)) % 10
    n = TRAIN_PICTURES["tiny"]
    return x[:n], y[:n], x[n:], y[n:]


def randomised(data: Dataset, seed: int) -> Dataset:
    """The same pictures; what they train on are labels drawn at random, each picture's own in every epoch."""
    words = np.random.Philox(np.random.SeedSequence([seed, LABELS_TAG])).random_raw(len(data.train_labels))
    return replace(data, train_labels=(words % CLASSES).astype(np.int64))


def epoch_plan(seed: int, epoch: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Order of the pictures, and crop offsets dy, dx and flip of the i-th picture *in that order*.

    Only the generator's raw 64-bit words are used: numpy promises never to change those, whereas
    `permutation` and `integers` may differ between versions.
    """
    words = np.random.Philox(np.random.SeedSequence([seed, epoch, PLAN_TAG])).random_raw(4 * n).reshape(4, n)
    order = np.argsort(words[0], kind="stable")
    dy, dx = (words[1:3] % (2 * PAD + 1)).astype(np.int64)
    return order, dy, dx, words[3] >> np.uint64(63) == 1


def lookup_table() -> np.ndarray:
    """[3, 256] float32: what ToTensor and Normalize make of each byte in each channel."""
    bytes_ = torch.arange(256, dtype=torch.uint8).to(torch.float32).div(255)
    mean, std = torch.tensor(MEAN), torch.tensor(STD)
    return bytes_.sub(mean[:, None]).div(std[:, None]).numpy()


@numba.njit  # not cached: numba unpickles its cache, and a damaged one kills the process; compiling takes 0.3 s
def crop_flip_normalise(images, index, dy, dx, flip, table, out):
    """out[b] = normalised, flipped crop of images[index[b]]; out is [B, 3072] float32, channel first."""
    for b in range(index.shape[0]):
        picture, row = images[index[b]], out[b]
        top, left, step = dy[b] - PAD, dx[b] - PAD, 1
        if flip[b]:  # walk each row backwards from its right end
            left, step = left + 31, -1
        for c in range(3):
            black = table[c, 0]
            for y in range(32):
                at, source_y = (c * 32 + y) * 32, y + top
                for x in range(32):
                    source_x = left + step * x
                    inside = 0 <= source_y < 32 and 0 <= source_x < 32
                    row[at + x] = table[c, picture[c, source_y, source_x]] if inside else black


def batches(
    data: Dataset, seed: int, epoch: int, batch: int, augment: bool
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """One epoch of (x [b, 3072] float32, y [b] int64); the last batch may be smaller.

    x is a view of a buffer that the next batch overwrites.
    """
    n = len(data.train_labels)
    order, dy, dx, flip = epoch_plan(seed, epoch, n)
    if not augment:
        dy, dx, flip = _centred(n)
    labels = torch.from_numpy(data.train_labels[order])
    table, x = lookup_table(), torch.empty(min(batch, n), PIXELS)  # torch aligns to 64 bytes, numpy to 16
    buffer = x.numpy()
    for start in range(0, n, batch):
        s = slice(start, min(start + batch, n))
        crop_flip_normalise(data.train_images, order[s], dy[s], dx[s], flip[s], table, buffer)
        yield x[: s.stop - s.start], labels[s]


def test_tensors(data: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole test set, normalised: x [N, 3072] float32 and y [N] int64."""
    n = len(data.test_labels)
    out = np.empty((n, PIXELS), np.float32)
    crop_flip_normalise(data.test_images, np.arange(n), *_centred(n), lookup_table(), out)
    return torch.from_numpy(out), torch.from_numpy(data.test_labels)


test_tensors.__test__ = False  # pytest: this is no test


def _centred(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Offsets that crop the padding away again, and no flip."""
    return np.full(n, PAD), np.full(n, PAD), np.zeros(n, bool)
