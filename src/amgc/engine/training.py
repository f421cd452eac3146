"""The training loop. It is the same for every method, on images or on the features of a network that does not train."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from amgc.data import BatchRandom
from amgc.engine.seeding import generator, seed_torch, shuffled
from amgc.engine.watch import Progress, TrainingError
from amgc.features.extractor import freeze_batchnorm, release_batchnorm
from amgc.methods.contract import Batch, Method, Phase, Task
from amgc.methods.optional import BeginsEpochs, MakesViews, RepeatsFeatures, TrainsSomeParameters

if TYPE_CHECKING:
    from amgc.engine.session import Session


def train(session: Session, task: Task) -> None:
    """Train a task from `session.position` to its end."""
    phase, method, position = session.method.phase(task), session.method, session.position
    trainer = Trainer(session, task, phase)
    steps = -(-len(trainer) // phase.batch_size)
    session.watch.begin_task(task, len(session.stream), steps * phase.epochs, position.step)
    for epoch in range(position.step // steps, phase.epochs):
        set_rates(trainer.optimizer, phase, epoch)
        done = position.step % steps
        if not done:
            session.meter.reset()
            if isinstance(method, BeginsEpochs):
                method.begin_epoch()
        for batch in trainer.batches(epoch, done):
            terms = trainer.step(batch)
            position.step += 1
            session.meter.add(terms)
            if session.watch.wants_progress():
                session.watch.progress(snapshot(method, batch, terms, epoch, phase, position.step, steps))
            session.checkpoints.save_if_due(trainer.optimizer, last=position.step == steps * phase.epochs)
        session.meter.check(task)


class Trainer:
    """The batches of a task, and the optimiser step that trains on one."""

    def __init__(self, session: Session, task: Task, phase: Phase) -> None:
        self.session, self.task, self.phase = session, task, phase
        method, fabric = session.method, session.processes.fabric
        self.images = session.features.training_images(task)
        self.features: Tensor | None = None
        self.uses: tuple[Tensor, Tensor] | None = None  # the rows of the features that an epoch uses, and which copy each is
        network = prepare(method, phase)
        module = Learner(network, method.trainable())
        optimizer = make_optimizer(network, method.trainable(), phase)
        self.learner: Any = None
        if any(parameter.requires_grad for parameter in network.parameters()):
            self.learner, wrapped = fabric.setup(module, optimizer)
            self.learner.train()
        else:
            wrapped = fabric.setup_optimizers(optimizer)
            if phase.epochs:
                self.features = session.features.training(task)
                if isinstance(method, RepeatsFeatures):
                    repeats = method.repeats(self.features, self.images.labels)
                    self.uses = None if repeats is None else unrolled(repeats.cpu())
        self.optimizer: Any = wrapped
        session.checkpoints.restore_optimizer(optimizer)

    def __len__(self) -> int:
        """Return how many images or features an epoch uses."""
        return len(self.images) if self.uses is None else len(self.uses[0])

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """Make an optimiser step and return the terms of the loss, whose sum is minimised."""
        terms = self.session.method.loss(batch)
        self.optimizer.zero_grad()
        self.session.processes.fabric.backward(torch.stack(list(terms.values())).sum())
        self.optimizer.step()
        return terms

    def batches(self, epoch: int, done: int) -> Iterator[Batch]:
        """Yield the batches of an epoch from step `done` on."""
        seed, task = self.session.config.seed, self.task.index
        indices = shuffled(len(self), self.phase.batch_size, seed, "shuffle", task, epoch)[done:]
        step = self.session.position.step
        if self.features is not None:
            for rows in indices:
                yield self.batch_of_features(rows, generator(seed, "step", task, step))
                step += 1
            return
        share = self.session.processes.share
        shares = [rows[share(len(rows))] for rows in indices]
        loaded = self.images.batches(shares)
        for rows, (images, labels) in zip(indices, loaded, strict=True):
            seed_torch(self.session.processes.device, seed, "network", task, step)  # dropout and the like
            random = BatchRandom(generator(seed, "augment", task, step), share(len(rows)).start, len(rows))
            yield self.batch_of_images(images, labels, random, generator(seed, "step", task, step))
            step += 1

    def batch_of_images(self, images: Tensor, labels: Tensor, random: BatchRandom, drawing: torch.Generator) -> Batch:
        """Pass this process's share through the network and return the features of all processes."""
        session, device = self.session, self.session.processes.device
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        images = session.augment(images, random) if self.phase.augment else session.augment.plain(images)
        gather, whole_batch_norm = session.processes.gather, session.processes.whole_batch_norm
        if isinstance(session.method, MakesViews):  # of the whole batch: every process makes all, and uses its share
            images, labels = session.method.views(gather(images), gather(labels), drawing)
            images = images[session.processes.share(len(images))]
        else:
            labels = gather(labels)
        images = images.contiguous(memory_format=torch.channels_last)

        def through(network: nn.Module) -> Tensor:
            with torch.no_grad(), session.processes.fabric.autocast(), whole_batch_norm():
                return gather(network(images).float())

        with whole_batch_norm():
            features = self.learner(images).float()
        return Batch(gather(features), labels, drawing, through)

    def batch_of_features(self, rows: Tensor, drawing: torch.Generator) -> Batch:
        """Return a batch of features that a frozen network computed before."""
        assert self.features is not None
        device = self.session.processes.device

        def through(network: nn.Module) -> Tensor:
            raise TypeError("another network cannot be asked: this task trains on the features of a frozen one.")

        copy = None
        if self.uses is not None:
            rows, copy = self.uses[0][rows], self.uses[1][rows].to(device)
        features, labels = self.features[rows].to(device), self.images.labels[rows].to(device)
        if isinstance(self.session.method, MakesViews):
            features, labels = self.session.method.views(features, labels, drawing)
        return Batch(features, labels, drawing, through, copy)


def unrolled(repeats: Tensor) -> tuple[Tensor, Tensor]:
    """Return row i `repeats[i]` times, and the number of each repetition.

    >>> [part.tolist() for part in unrolled(torch.tensor([1, 3, 0, 2]))]
    [[0, 1, 1, 1, 3, 3], [0, 0, 1, 2, 0, 1]]
    """
    rows = torch.arange(len(repeats)).repeat_interleave(repeats)
    first = (repeats.cumsum(0) - repeats)[rows]
    return rows, torch.arange(len(rows)) - first


class Learner(nn.Module):
    """The module for DDP: the network, and the other parameters, which its forward pass does not use."""

    def __init__(self, network: nn.Module, others: list[Tensor]) -> None:
        super().__init__()
        self.network = network
        self.others = nn.ParameterList(others)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.network(images)
        return features


def prepare(method: Method[Any], phase: Phase) -> nn.Module:
    """Return the network as the phase needs it: training or frozen, with batch norm free or fixed."""
    network = method.network
    release_batchnorm(network)
    trains = method.trains_network(phase)
    for name, parameter in network.named_parameters():
        chosen = not isinstance(method, TrainsSomeParameters) or method.trains(name)
        parameter.requires_grad_(trains and chosen)
    if phase.batchnorm == "fixed":
        freeze_batchnorm(network)
    return network


def make_optimizer(network: nn.Module, others: list[Tensor], phase: Phase) -> torch.optim.Optimizer:
    """Return an optimiser in which network and head have their own learning rates and weight decays."""
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    groups = [
        {"params": others, "lr": phase.head_lr, "weight_decay": phase.head_weight_decay},
        {"params": trained, "lr": phase.extractor_lr, "weight_decay": phase.weight_decay},
    ]
    groups = [{**group, "base_lr": group["lr"]} for group in groups if group["params"]]
    if phase.optimizer == "adam":
        return torch.optim.Adam(groups)
    return torch.optim.SGD(groups, momentum=phase.momentum)


def set_rates(optimizer: torch.optim.Optimizer, phase: Phase, epoch: int) -> None:
    """Set the learning rates of an epoch."""
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * rate(phase, epoch)


def rate(phase: Phase, epoch: int) -> float:
    """Return the factor by which the schedule multiplies the learning rates in this epoch.

    >>> [rate(Phase(epochs=4), epoch) for epoch in (0, 2)], [rate(Phase(epochs=10, schedule="step"), e) for e in (2, 3, 9)]
    ([1.0, 0.5], [1.0, 0.1, 0.001])
    """
    if phase.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * epoch / phase.epochs))
    if phase.schedule == "step":
        return phase.gamma ** sum(epoch >= round(share * phase.epochs) for share in phase.milestones)
    return 1.0


class Meter:
    """Means of the loss terms over an epoch, kept on the device: no synchronisation per step."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.count = 0

    def reset(self) -> None:
        self.sums, self.count = {}, 0

    def add(self, terms: dict[str, Tensor]) -> None:
        for name, value in terms.items():
            value = value.detach().double()
            self.sums[name] = self.sums[name] + value if name in self.sums else value
        self.count += 1

    def means(self) -> dict[str, float]:
        return {name: float(value) / self.count for name, value in self.sums.items()}

    def check(self, task: Task) -> None:
        """Raise an error with advice if a loss is not finite."""
        wrong = [name for name, value in self.means().items() if not math.isfinite(value)]
        if wrong:
            raise TrainingError(
                f"the loss {wrong[0]!r} became infinite or not a number in task {task.index + 1}. "
                f"Try a smaller learning rate (--{'first' if task.is_first else 'later'}.extractor-lr, ….head-lr)."
            )


def snapshot(
    method: Method[Any], batch: Batch, terms: dict[str, Tensor], epoch: int, phase: Phase, step: int, steps: int
) -> Progress:
    """Return what the progress display shows. Classes that the method added do not count for the accuracy."""
    real = batch.labels < len(method.task.seen)
    with torch.no_grad():
        right = (method.head(batch.features).argmax(1) == batch.labels)[real].float().mean()
    values = {name: float(value.detach()) for name, value in terms.items()}
    return Progress(epoch, phase.epochs, step, steps * phase.epochs, values, float(right))
