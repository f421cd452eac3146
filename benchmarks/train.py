"""Training images per second: the engine, a plain PyTorch loop with the same network, and a data loader as in PyCIL.

    python benchmarks/train.py            # about four minutes; keep the machine otherwise idle
    python benchmarks/train.py --quick    # few images, seconds

An epoch of cross-entropy on CIFAR-sized noise (networks built beforehand), batch 128, SGD with momentum, the paper's
augmentation. "plain" is a hand-written loop: tensors in memory, the same batched augmentation, forward, backward and step, in
the memory format of the engine; "plain, NCHW" is the same in PyTorch's default format. "PIL" opens, crops, mirrors and
brightens single images in a DataLoader with two workers. "network alone" is forward, backward and step on the same batch,
the lower bound of every loop; the rest is the share of time outside the network.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from _report import kept, side_by_side
from PIL import Image, ImageEnhance, ImageOps
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from amgc.data import Augment, Dataset, Images
from amgc.engine.checkpoint import Position
from amgc.engine.config import Config
from amgc.engine.session import Session
from amgc.engine.training import train
from amgc.engine.watch import Watch
from amgc.features import build
from amgc.methods.registry import find
from amgc.options import merged

MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
BATCH, CLASSES, LR = 128, 10, 0.1
NETWORKS = {
    "ResNet-18, quarter width (cifar100-small)": {"width": 0.25, "stem": "imagenet3"},
    "ResNet-18, quarter width, CIFAR stem": {"width": 0.25, "stem": "cifar"},
    "ResNet-18 (the paper's)": {"width": 1.0, "stem": "cifar"},
}


def noise(count: int) -> Dataset:
    drawn = np.random.RandomState(0)
    images = Images.of(drawn.randint(0, 256, (count, 3, 32, 32), dtype=np.uint8), np.arange(count) % CLASSES)
    names = tuple(map(str, range(CLASSES)))
    how = {"padding": 4, "flip": True, "brightness": 63 / 255}
    return Dataset(images, images.subset(range(CLASSES)), names, "noise", MEAN, STD, augmentation=how)


class Pictures(TorchDataset):
    """PyCIL's DummyDataset with the transforms for CIFAR, written out."""

    def __init__(self, images: Images) -> None:
        self.pixels, self.labels = images.take(range(len(images))).permute(0, 2, 3, 1).numpy(), images.labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = ImageOps.expand(Image.fromarray(self.pixels[row]), 4)
        left, top = torch.randint(9, (2,)).tolist()
        image = image.crop((left, top, left + 32, top + 32))
        if torch.rand(()) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        image = ImageEnhance.Brightness(image).enhance(float(torch.empty(()).uniform_(1 - 63 / 255, 1 + 63 / 255)))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(255)
        return (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None], self.labels[row]


class Plain:
    """Network, head and optimiser of a hand-written loop."""

    def __init__(self, options: dict, memory_format: torch.memory_format) -> None:
        self.network = build("resnet18", image_shape=(3, 32, 32), **options).to(memory_format=memory_format).train()
        self.head = torch.nn.Linear(self.network.dim, CLASSES)
        parameters = [*self.network.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.SGD(parameters, lr=LR, momentum=0.9, weight_decay=5e-4)
        self.memory_format = memory_format

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        loss = cross_entropy(self.head(self.network(images.contiguous(memory_format=self.memory_format))), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def jobs(options: dict, dataset: Dataset, workers: int) -> dict[str, Callable[[], None]]:
    """Return the jobs, one epoch each. `workers` is the number of processes that load images for PIL."""
    augment, generator = Augment.of(dataset), torch.Generator().manual_seed(0)
    pixels, labels = dataset.train.take(range(len(dataset.train))), dataset.train.labels
    phase = {"epochs": 1, "extractor_lr": LR, "head_lr": LR, "batch_size": BATCH}
    config = Config("finetune", merged(find("finetune").hyper, {"first": phase}), features="resnet18", features_options=options)
    fixed = augment(pixels[:BATCH], generator).contiguous(memory_format=torch.channels_last)
    folder = Path(tempfile.mkdtemp())

    session = Session(config, folder, Watch(), dataset)
    task = session.method.task = session.task(0)
    session.method.begin(task, generator)

    def engine() -> None:
        session.position = Position(begun=True)
        train(session, task)

    def plain(memory_format: torch.memory_format) -> Callable[[], None]:
        made = Plain(options, memory_format)

        def epoch() -> None:
            for rows in torch.randperm(len(labels), generator=generator).split(BATCH):
                made.step(augment(pixels[rows], generator), labels[rows])

        return epoch

    usual, alone = Plain(options, torch.contiguous_format), Plain(options, torch.channels_last)

    def pil() -> None:
        loader = DataLoader(Pictures(dataset.train), BATCH, shuffle=True, num_workers=workers)
        for images, given in loader:
            usual.step(images, given)

    def network_alone() -> None:
        for _ in range(-(-len(labels) // BATCH)):
            alone.step(fixed, labels[:BATCH])

    return {
        "engine": engine,
        "plain": plain(torch.channels_last),
        "plain, NCHW": plain(torch.contiguous_format),
        "PIL": pil,
        "network alone": network_alone,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="few images, to see that it runs")
    quick = arguments.parse_args().quick
    with kept("train"):
        for name, options in list(NETWORKS.items())[: 1 if quick else None]:
            count = 16 if quick else 256 if options["width"] == 1 else 2560
            made = jobs(options, noise(count), workers=0 if quick else 2)
            times = side_by_side(made, rounds=1 if quick else 2 if options["width"] == 1 else 11)
            print(f"{name}: images per second, and how fast the engine is beside it")
            for job, seconds in times.items():
                print(f"  {job:14} {count / seconds:7.0f}   {seconds / times['engine']:5.2f}")
            outside = 1 - times["network alone"] / times["engine"]
            print(f"  the engine's share of time outside of the network: {100 * outside:.1f} %\n")


if __name__ == "__main__":
    main()
