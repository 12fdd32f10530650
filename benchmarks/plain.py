"""The training loops a person would otherwise write: torch modules, autograd, one AdamW per part.

Slow and literal on purpose. The tests hold the engine against them, the bench measures it against them.
"""

from collections.abc import Callable, Iterator

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot
from torch.utils.data import DataLoader
from torchvision import transforms

from creditaudit.engine import data
from creditaudit.engine.model import CLASSES, ResMLP
from creditaudit.engine.spec import RunSpec

Batches = Iterator[tuple[Tensor, Tensor]]


def train(spec: RunSpec, module: ResMLP, feedback: Tensor | None, batches: Batches) -> Callable[[int], None]:
    """A function that trains for some number of steps."""
    parts = optimizers(spec, module)

    def steps(n: int) -> None:
        for _ in range(n):
            step(spec, module, feedback, parts, *next(batches))

    return steps


def step(spec: RunSpec, module: ResMLP, feedback: Tensor | None, parts: list, x: Tensor, y: Tensor) -> None:
    module.zero_grad()
    losses(spec, module, feedback, x, y).backward()
    for part in parts:
        part.step()


def losses(spec: RunSpec, module: ResMLP, feedback: Tensor | None, x: Tensor, y: Tensor) -> Tensor:
    """BP: the task loss and its penalties. Else the sum of every part's own loss, each on detached inputs.

    The local methods pass forward twice: their losses need the output error, which the first pass gives.
    """
    h, trained = module.states(x), range(spec.depth - spec.k, spec.depth)
    if spec.method == "bp":
        loss = cross_entropy(module.readout(h[-1]), y)
        return loss + sum(_penalty(spec, h[l + 1] - h[l]) for l in trained) if spec.penalty else loss
    h = [state.detach() for state in h]
    credit, embed_credit = credits(spec, module, feedback, h[-1], y)
    loss = cross_entropy(module.readout(h[-1]), y)
    for l in trained:
        f = module.blocks[l](h[l])
        loss = loss + (f * normalised(credit[l], spec.normalisation)).sum(-1).mean()
        loss = loss + _penalty(spec, f) if spec.penalty else loss
    return loss + (module.embed(x) * normalised(embed_credit, spec.normalisation)).sum(-1).mean()


def _penalty(spec: RunSpec, f: Tensor) -> Tensor:
    return spec.penalty * f.square().sum(-1).mean()


def normalised(a: Tensor, mode: str) -> Tensor:
    if mode == "none":
        return a
    dims = -1 if mode == "sample" else (0, 1)
    return a / (a.square().mean(dims, keepdim=True).sqrt() + 1e-6)


def credits(spec: RunSpec, module: ResMLP, feedback: Tensor, h_last: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
    """What drives each block, and the embed, under DFA and FA, straight from the definitions."""
    if spec.method == "dfa":
        with torch.no_grad():
            error = module.readout(h_last).softmax(-1) - one_hot(y, CLASSES)
        return [error @ feedback[l] for l in range(spec.depth)], error @ feedback[0]
    top = h_last.clone().requires_grad_()
    a = list(torch.autograd.grad(cross_entropy(module.readout(top), y), top))  # a_L
    for l in reversed(range(spec.depth)):
        a.insert(0, a[0] @ feedback[l])
    return a[1:], a[0]


def optimizers(spec: RunSpec, module: ResMLP) -> list[torch.optim.AdamW]:
    """One AdamW per trained part: embed, each of the last k blocks, readout; BP at full depth needs only one."""
    if spec.method == "bp" and spec.k == spec.depth:
        return [torch.optim.AdamW(module.parameters(), lr=spec.lr, weight_decay=spec.weight_decay)]
    parts = [module.embed.parameters(), [*module.norm.parameters(), *module.head.parameters()]]
    parts += [block.parameters() for block in module.blocks[spec.depth - spec.k :]]
    return [torch.optim.AdamW(part, lr=spec.lr, weight_decay=spec.weight_decay) for part in parts]


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
