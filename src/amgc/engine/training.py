"""The training loop. It is the same for every method, on images or on the features of a network that does not train."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from amgc.data import BatchRandom
from amgc.engine import sharing
from amgc.engine.features import ImagesOfTask
from amgc.engine.seeding import generator, seed_torch, shuffled
from amgc.engine.watch import TrainingError, TrainingProgress
from amgc.features.extractor import freeze_batchnorm, release_batchnorm
from amgc.methods.contract import Batch, Method, Phase, Task
from amgc.methods.optional import (
    BeginsEpochs,
    ChoosesParameterGroups,
    MakesViews,
    RepeatsFeatures,
    TrainsSomeParameters,
    TrainsTwice,
)

if TYPE_CHECKING:
    from amgc.engine.session import Session


def train(session: Session, task: Task, taken: bool = False) -> None:
    """Train a task from `session.position` to its end, in one stage or two; `taken`: the first is taken from another run."""
    method, position, phase = session.method, session.position, second_phase(session.method, task)
    first = None if taken or position.stage else Trainer(session, task, method.phase(task))
    later = 0 if phase is None else phase.epochs * -(-len(session.features.training_images(task)) // phase.batch_size)
    total = later + (first.steps if first else position.earlier if position.stage else position.step)
    if first or later:
        session.watch.begin_task(task, len(session.stream), total, position.earlier + position.step)
    if first:
        train_stage(session, first, total)
    session.stopwatch.count("train")
    if not position.stage and (not taken or session.config.machine.keep_tasks):
        sharing.keep(session, task.index)
    if phase is None:
        return
    assert isinstance(method, TrainsTwice)
    if position.stage == 0:
        method.network.eval()
        method.begin_second(task, ImagesOfTask(session.features, task), generator(session.config.seed, "second", task.index))
        position.stage, position.earlier, position.step = 1, position.step, 0
    train_stage(session, Trainer(session, task, phase, stage=1), total)
    session.stopwatch.count("train")


def second_phase(method: Method[Any], task: Task) -> Phase | None:
    """Return the settings of a second stage, or None."""
    phase = method.second_phase(task) if isinstance(method, TrainsTwice) else None
    return phase if phase is not None and phase.epochs else None


def train_stage(session: Session, trainer: Trainer, total: int) -> None:
    """Train one stage of a task; `total` is the number of steps of all its stages."""
    task, phase, method, position = trainer.task, trainer.phase, session.method, session.position
    steps = -(-len(trainer) // phase.batch_size)
    for epoch in range(position.step // steps, phase.epochs):
        set_rates(trainer.optimizer, phase, epoch)
        done = position.step % steps
        if not done:
            session.meter.reset()
            if isinstance(method, BeginsEpochs) and not trainer.stage:
                method.begin_epoch()
        for batch in trainer.batches(epoch, done):
            terms = trainer.step(batch)
            position.step += 1
            session.meter.add(terms)
            if session.watch.wants_progress():
                now = snapshot(method, batch, terms, epoch, phase, position.earlier + position.step, total)
                session.watch.progress(now)
            session.checkpoints.save_if_due(trainer.optimizer, last=position.step == trainer.steps)
        session.meter.check(task)


def steps_left(phase: Phase, uses: int, done: int) -> tuple[int, int]:
    """Return how many steps of a stage are left, and how many images they use, if an epoch uses `uses` images.

    >>> steps_left(Phase(epochs=2, batch_size=4), 10, done=1)  # batches of 4, 3, 3; 4, 3, 3
    (5, 16)
    """
    sizes = [len(batch) for batch in shuffled(uses, phase.batch_size)]
    epochs, rest = divmod(min(done, len(sizes) * phase.epochs), len(sizes))
    left = phase.epochs - epochs
    return left * len(sizes) - rest, left * uses - sum(sizes[:rest])


class Trainer:
    """The batches of a stage of a task, and the optimiser step that trains on one."""

    def __init__(self, session: Session, task: Task, phase: Phase, stage: int = 0) -> None:
        self.session, self.task, self.phase, self.stage = session, task, phase, stage
        method, fabric = session.method, session.processes.fabric
        self.images = session.features.training_images(task)
        self.features: Tensor | None = None
        self.others: dict[nn.Module, Tensor] = {}  # features that other networks computed once
        self.uses: tuple[Tensor, Tensor] | None = None  # the rows of the features that an epoch uses, and which copy each is
        self.loss = method.loss
        trainable = method.trainable()
        if stage:
            assert isinstance(method, TrainsTwice)
            self.loss, trainable = method.second_loss, method.second_trainable()
            network: nn.Module = method.network.requires_grad_(False).eval()
        else:
            network = prepare(method, phase)
        self.module = Learner(network, trainable)
        optimizer = make_optimizer(network, trainable, phase, method if not stage else None)
        self.learner: Any = None
        if any(parameter.requires_grad for parameter in network.parameters()):
            self.learner, wrapped = fabric.setup(self.module, optimizer)
            self.learner.train()
        else:
            wrapped = fabric.setup_optimizers(optimizer)
            if stage and phase.augment and len(self.images.shape) == 3:
                self.learner = network
            elif phase.epochs:
                self.features = session.features.training(task)
                if isinstance(method, RepeatsFeatures) and not stage:
                    repeats = method.repeats(self.features, self.images.labels)
                    self.uses = None if repeats is None else unrolled(repeats.cpu())
        self.optimizer: Any = wrapped
        session.checkpoints.restore_optimizer(optimizer)

    def __len__(self) -> int:
        """Return how many images or features an epoch uses."""
        return len(self.images) if self.uses is None else len(self.uses[0])

    @property
    def steps(self) -> int:
        """The number of optimiser steps of the stage."""
        return self.phase.epochs * -(-len(self) // self.phase.batch_size)

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """Make an optimiser step and return the terms of the loss, whose sum is minimised."""
        terms, fabric = self.loss(batch), self.session.processes.fabric
        self.optimizer.zero_grad()
        fabric.backward(torch.stack(list(terms.values())).sum())
        if self.phase.clip:
            fabric.clip_gradients(self.module, self.optimizer, max_norm=self.phase.clip, error_if_nonfinite=False)
        self.optimizer.step()
        return terms

    def place(self, purpose: str, number: int) -> tuple[int | str, ...]:
        """Return the arguments of `generator` for an epoch or a step of this stage."""
        return self.session.config.seed, f"second {purpose}" if self.stage else purpose, self.task.index, number

    def batches(self, epoch: int, done: int) -> Iterator[Batch]:
        """Yield the batches of an epoch from step `done` on."""
        indices = shuffled(len(self), self.phase.batch_size, *self.place("shuffle", epoch))[done:]
        step = self.session.position.step
        if self.features is not None:
            for rows in indices:
                yield self.batch_of_features(rows, generator(*self.place("step", step)))
                step += 1
            return
        share = self.session.processes.share
        shares = [rows[share(len(rows))] for rows in indices]
        loaded = self.images.batches(shares)
        for rows, (images, labels) in zip(indices, loaded, strict=True):
            seed_torch(self.session.processes.device, *self.place("network", step))  # dropout and the like
            random = BatchRandom(generator(*self.place("augment", step)), share(len(rows)).start, len(rows))
            yield self.batch_of_images(images, labels, random, generator(*self.place("step", step)))
            step += 1

    def batch_of_images(self, images: Tensor, labels: Tensor, random: BatchRandom, drawing: torch.Generator) -> Batch:
        """Pass this process's share through the network and return the features of all processes."""
        session, device = self.session, self.session.processes.device
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        images = session.augment(images, random) if self.phase.augment else session.augment.plain(images)
        gather, whole_batch_norm = session.processes.gather, session.processes.whole_batch_norm
        if isinstance(session.method, MakesViews) and not self.stage:  # of the whole batch: each process makes all of them
            images, labels = session.method.views(gather(images), gather(labels), drawing)
            images = images[session.processes.share(len(images))]
        else:
            labels = gather(labels)
        images = images.contiguous(memory_format=torch.channels_last)

        def through(network: nn.Module) -> Tensor:
            with torch.no_grad(), session.processes.fabric.autocast(), whole_batch_norm():
                return gather(network(images).float())

        if self.stage:
            return Batch(through(self.learner), labels, drawing, through)
        with whole_batch_norm():
            features = self.learner(images).float()
        return Batch(gather(features), labels, drawing, through)

    def batch_of_features(self, rows: Tensor, drawing: torch.Generator) -> Batch:
        """Return a batch of features that a frozen network computed before."""
        assert self.features is not None
        device = self.session.processes.device

        def through(network: nn.Module) -> Tensor:
            if not self.stage:
                raise TypeError("no other network can be used here: this task trains on the features of a frozen network.")
            if network not in self.others:
                self.others[network] = ImagesOfTask(self.session.features, self.task).features(network).cpu()
            return self.others[network][rows].to(device)

        copy = None
        if self.uses is not None:
            rows, copy = self.uses[0][rows], self.uses[1][rows].to(device)
        features, labels = self.features[rows].to(device), self.images.labels[rows].to(device)
        if isinstance(self.session.method, MakesViews) and not self.stage:
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


def make_optimizer(
    network: nn.Module, others: list[Tensor], phase: Phase, method: Method[Any] | None = None
) -> torch.optim.Optimizer:
    """Return an optimiser in which network and head have their own learning rates and weight decays, or the method's groups."""
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    usual = {"lr": phase.extractor_lr, "weight_decay": phase.weight_decay}
    if isinstance(method, ChoosesParameterGroups):
        groups = [usual | group for group in method.parameter_groups(phase, trained)]
    else:
        head = {"params": others, "lr": phase.head_lr, "weight_decay": phase.head_weight_decay}
        groups = [head, {"params": trained, **usual}]
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
    method: Method[Any], batch: Batch, terms: dict[str, Tensor], epoch: int, phase: Phase, step: int, total: int
) -> TrainingProgress:
    """Return what the progress display shows. Classes that the method added do not count for the accuracy."""
    real = batch.labels < len(method.task.seen)
    with torch.no_grad():
        right = (method.head(batch.features).argmax(1) == batch.labels)[real].float().mean()
    values = {name: float(value.detach()) for name, value in terms.items()}
    return TrainingProgress(epoch, phase.epochs, step, total, values, float(right))
