"""The training loops a person would otherwise write: the literal step, and the two usual ways to make batches."""

from collections.abc import Callable, Iterator

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision import transforms

from creditaudit.engine import data, literal
from creditaudit.engine.model import ResMLP
from creditaudit.engine.spec import RunSpec

Batches = Iterator[tuple[Tensor, Tensor]]


def train(spec: RunSpec, module: ResMLP, feedback: Tensor | None, batches: Batches) -> Callable[[int], None]:
    """A function that trains for some number of steps."""
    parts = literal.optimizers(spec, module)

    def steps(n: int) -> None:
        for _ in range(n):
            literal.step(spec, module, feedback, parts, *next(batches))

    return steps


def preloaded_batches(pictures: data.Dataset, batch: int) -> Batches:
    """Data as one tensor; crop, flip and normalisation as tensor operations on a batch."""
    images = torch.nn.functional.pad(torch.from_numpy(pictures.train_images.copy()), [data.PAD] * 4)
    labels = torch.from_numpy(pictures.train_labels)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (data.MEAN, data.STD))
    offsets = torch.arange(32)
    while True:
        for index in torch.randperm(len(labels)).split(batch):
            rows = torch.randint(0, 2 * data.PAD + 1, (len(index), 1)) + offsets
            columns = torch.randint(0, 2 * data.PAD + 1, (len(index), 1)) + offsets
            columns = torch.where(torch.rand(len(index), 1) < 0.5, columns.flip(1), columns)
            cropped = images[index[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
            yield ((cropped.float() / 255 - mean) / std).flatten(1), labels[index]


class PilPictures(torch.utils.data.Dataset):
    """What torchvision.datasets.CIFAR10 does for each picture."""

    def __init__(self, pictures: data.Dataset) -> None:
        self.images, self.labels = pictures.train_images.transpose(0, 2, 3, 1).copy(), pictures.train_labels
        self.transform = transforms.Compose(
            [
                transforms.RandomCrop(32, padding=data.PAD),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(data.MEAN, data.STD),
            ]
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.images[index])), self.labels[index]


def loader_batches(pictures: data.Dataset, batch: int, workers: int = 2) -> Batches:
    """The usual tutorial: DataLoader over 8-bit pictures through PIL."""
    while True:
        yield from DataLoader(PilPictures(pictures), batch, shuffle=True, num_workers=workers)
