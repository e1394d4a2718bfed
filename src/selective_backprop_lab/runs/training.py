"""One training run of a method, a recipe and a seed. It makes a record per epoch and resumes exactly."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import DataLoader, RandomSampler

import selective_backprop as sb
from selective_backprop.dynamics.log import FILE
from selective_backprop.ledger import Ledger
from selective_backprop.stats import COUNTS
from selective_backprop_lab.data.augment import Augment, Normalise, measure_mean_std
from selective_backprop_lab.data.datasets import ImageDataset, ImageSet, flip_labels, load_images, split_validation
from selective_backprop_lab.models import make_model
from selective_backprop_lab.models.speedrun import WHITENED, Speedrun
from selective_backprop_lab.runs.clock import Clock
from selective_backprop_lab.runs.costs import scoring_cost
from selective_backprop_lab.runs.methods import make_method
from selective_backprop_lab.runs.recipes import Recipe
from selective_backprop_lab.runs.records import RunFolder
from selective_backprop_lab.runs.settings import Settings as Settings

Record = dict[str, Any]


class Prepare:
    """Normalises and augments a candidate batch on the device. Its state is the augmentation's.

    It normalises first, so that padded and cut-out pixels have the mean colour, not black.
    """

    def __init__(self, augment: Augment, normalise: nn.Module) -> None:
        self.augment, self.normalise = augment, normalise

    def __call__(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self.augment(self.normalise(batch[0])), batch[1]

    def state_dict(self) -> dict[str, Any]:
        return self.augment.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.augment.load_state_dict(state)


def make_optimizer(recipe: Recipe, parameters: Iterable[nn.Parameter], device: torch.device) -> Optimizer:
    """The recipe's optimizer. It updates all parameters in one call on devices that can.

    Each group keeps its factor on the recipe's rate as `factor`.
    """
    fused = device.type in ("cpu", "cuda")
    given = [parameter for parameter in parameters if parameter.requires_grad]
    if recipe.bias_rate != 1:
        weights, biases = ([p for p in given if (p.dim() == 1) == is_bias] for is_bias in (False, True))
        factor = recipe.bias_rate
        faster = {"factor": factor, "lr": factor * recipe.lr, "weight_decay": recipe.weight_decay / factor}
        groups = [{"params": weights, "factor": 1.0}, {"params": biases, **faster}]
    else:
        groups = [{"params": given, "factor": 1.0}]
    if recipe.optimizer == "adamw":
        betas = (recipe.momentum, 0.999)
        return AdamW(groups, lr=recipe.lr, betas=betas, weight_decay=recipe.weight_decay, fused=fused)
    return SGD(
        groups,
        lr=recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=recipe.nesterov,
        fused=fused,
    )


class InBFloat16(nn.Module):
    """Runs a network in bfloat16 where torch.autocast holds it safe, and gives its outputs in float32."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16):
            outputs: Tensor = self.model(inputs)
        return outputs.float()


class Training:
    """A training run. `epoch()` trains for one epoch of candidates and returns its record.

    The run has its own copy of torch's global random state, from which the model draws (dropout). So runs can take
    turns, and the caller's random state is left alone.

    The error is measured after every epoch; with test_every_epoch=False, after the last one only.
    """

    def __init__(
        self, settings: Settings, data: ImageSet, device: torch.device, *, test_every_epoch: bool = True
    ) -> None:
        self.settings, self.data, self.device, self.test_every_epoch = settings, data, device, test_every_epoch
        recipe, seed = settings.recipe, settings.seed
        channels = data.train_images.shape[1]
        labels = data.train_labels
        if settings.label_noise:
            labels, _ = flip_labels(labels, settings.label_noise, data.num_classes, seed=seed)
        with torch.random.fork_rng(self._cuda_devices):
            torch.manual_seed(seed)
            self._random_states = self._get_random_states()
        images = data.train_images
        self.normalise = nn.Identity() if data.is_text else Normalise(*measure_mean_std(images)).to(device)

        def make_network(name: str, seed: int) -> nn.Module:
            model = make_model(name, num_classes=data.num_classes, channels=channels, seed=seed).to(device)
            if isinstance(model, Speedrun):
                model.whiten(self.normalise(images[:WHITENED].to(device)))
            return InBFloat16(model) if recipe.bf16 else model

        # Convolutions are fastest with channels last, on CPUs and on GPUs.
        self.model = make_network(recipe.model, seed).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.test = data.test_images, data.test_labels
        self.num_examples = len(labels)
        self.dataset = dataset = ImageDataset(data.train_images, labels)

        def make_proxy(name: str) -> nn.Module:
            # Another seed than the model's, so that a proxy of the same kind starts with other weights.
            return make_network(name, seed + 1)

        # A proxy learns by the recipe, at the run's own rate of the moment.
        learns = {"optimizer": functools.partial(make_optimizer, recipe, device=device), "rate": recipe.decay.at}
        method = make_method(settings.method, settings.selectivity, settings.options, make_proxy, learns)
        generator = torch.Generator().manual_seed(seed)
        self.train_loader: DataLoader[Any] = DataLoader(
            dataset,
            recipe.batch_size,
            sampler=RandomSampler(dataset, generator=generator),
            generator=generator,
            collate_fn=dataset.collate,
            # All methods train on batches of the same size. A small last batch ruins the statistics of BatchNorm, and
            # would handicap plain training, which alone meets it in every epoch.
            drop_last=len(dataset) >= recipe.batch_size,
        )
        augment = Augment(padding=recipe.padding, flip=recipe.flip, cutout=recipe.cutout, seed=seed)
        self.prepare = Prepare(augment, self.normalise)
        self.loader = sb.SelectiveLoader(
            self.train_loader,
            self.model,
            nn.CrossEntropyLoss(label_smoothing=recipe.label_smoothing),
            method,
            transform=self.prepare,
            device=device,
            num_epochs=settings.epochs,
            seed=seed,
            audit=settings.record is not None,
        )
        self.optimizer = make_optimizer(recipe, self.model.parameters(), device)
        self.scoring_cost = scoring_cost(self.loader.scorer, self.model, self.normalise(images[:1].to(device)))
        self.records: list[Record] = []
        self.selected_before = self.ledger.selected.clone()
        """How often each example had been selected before the last epoch."""

    @property
    def ledger(self) -> Ledger:
        """The loader's ledger."""
        return self.loader.ledger.whole()

    @property
    def _cuda_devices(self) -> list[torch.device]:
        return [self.device] if self.device.type == "cuda" else []

    def _get_random_states(self) -> list[Tensor]:
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in self._cuda_devices)]

    def _set_random_states(self, states: Sequence[Tensor]) -> None:
        torch.set_rng_state(states[0])
        for device, state in zip(self._cuda_devices, states[1:], strict=True):
            torch.cuda.set_rng_state(state, device)

    def epoch(self) -> Record:
        """Train for one epoch of candidates, test, and return the record."""
        with torch.random.fork_rng(self._cuda_devices):
            self._set_random_states(self._random_states)
            self.selected_before = self.ledger.selected.clone()
            record = self._epoch()
            self._random_states = self._get_random_states()
        self.records.append(record)
        return record

    def _epoch(self) -> Record:
        clock, before = Clock(self.device), self.loader.stats.state_dict()
        losses, wrong = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        given_out = 0
        self.model.train()
        for images, labels in self.loader:
            # Set by progress, so that the rate has fully decayed at the end, however few steps were taken.
            rate = self.settings.recipe.lr_at(self.loader.progress)
            for group in self.optimizer.param_groups:
                group["lr"] = rate * group["factor"]
            with clock("forward"):
                outputs = self.model(images)
                loss = self.loader.loss(outputs, labels)
            with clock("backward"):
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            losses += loss.detach() * len(labels)
            given_out += len(labels)
            wrong += (outputs.detach().argmax(1) != labels).sum()
        record: Record = {}
        if self.test_every_epoch or len(self.records) == self.settings.epochs - 1:
            with clock("evaluation"):
                test_loss, test_error = self.evaluate()
            record |= {"test_examples": len(self.test[1]), "test_loss": test_loss, "test_error": test_error}
        record |= self._record(before, clock.read()) | {"lr": self.optimizer.param_groups[0]["lr"]}
        record |= {"train_loss": float(losses) / max(1, given_out), "train_error": float(wrong) / max(1, given_out)}
        return record

    def _record(self, before: dict[str, Any], seconds: dict[str, float]) -> Record:
        stats = self.loader.stats
        record: Record = {"epoch": len(self.records)}
        record |= {name: getattr(stats, name) - before[name] for name in (*COUNTS, "batches")}
        # In epochs of Traditional training, which costs 1 (forward) + 2 (backward) per example.
        cost = self.scoring_cost
        scoring = cost.per_scored * record["scored"] + cost.per_offered * record["offered"]
        passes = scoring + 3 * record["trained"]
        record["compute"] = passes / (3 * self.num_examples)
        phases = {name: stats.seconds[name] - before["seconds"][name] for name in stats.seconds}
        forward, backward = seconds.get("forward", 0.0), seconds.get("backward", 0.0)
        record["seconds"] = {
            "loading": phases["loading"],
            "selection": phases["scoring"] + phases["selecting"],
            "forward": forward,
            "backward": backward,
            "other": max(0.0, phases["training"] - forward - backward),
            "evaluation": seconds.get("evaluation", 0.0),
        }
        return record

    @torch.no_grad()
    def test_outputs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Outputs and labels of the test set, a thousand examples at a time."""
        self.model.eval()
        for images, labels in zip(*(torch.split(part, 1000) for part in self.test), strict=True):
            images = self.normalise(images.to(self.device))
            outputs = self.model(images)
            if self.settings.recipe.mirrored_test:
                outputs = (outputs + self.model(images.flip(3))) / 2
            yield outputs, labels.to(self.device)

    def evaluate(self) -> tuple[float, float]:
        """Loss and error on the test set."""
        loss, wrong = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        for outputs, labels in self.test_outputs():
            loss += F.cross_entropy(outputs, labels, reduction="sum")
            wrong += (outputs.argmax(1) != labels).sum()
        return float(loss) / len(self.test[1]), float(wrong) / len(self.test[1])

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": self.loader.state_dict(),
            "random": self._random_states,
            "records": self.records,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        # The settings of the run say how it steps, and each step sets the rate: only what was kept is loaded.
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state["optimizer"]["state"], "param_groups": groups})
        self.loader.load_state_dict(state["loader"])
        with torch.random.fork_rng(self._cuda_devices):
            self._set_random_states(state["random"])  # refuses what is no state of a generator
        self._random_states = state["random"]
        self.records = list(state["records"])
        if len(self.records) != self.loader.epoch:
            raise ValueError(f"it has {len(self.records)} records of {self.loader.epoch} epochs")


def load_data(settings: Settings, data_dir: Path | None = None) -> ImageSet:
    """Load the data of a run. If the settings say so, a validation split replaces the test set."""
    recipe = settings.recipe
    data = load_images(recipe.dataset, data_dir=data_dir, image_size=recipe.image_size)
    if not len(data.test_labels) and not settings.validation:
        raise ValueError(f"{recipe.dataset} has nothing to test on: add it, or test on a part with --validation 0.2")
    return split_validation(data, settings.validation, seed=0) if settings.validation else data


def check(settings: Settings, data: ImageSet) -> None:
    """Raise for wrong names before a folder is made. A folder made with them would be refused once they are right."""

    def make_network(name: str) -> nn.Module:
        return make_model(name, num_classes=data.num_classes, channels=data.train_images.shape[1], seed=0)

    make_method(settings.method, settings.selectivity, settings.options, make_network)
    make_network(settings.recipe.model)


Observer = Callable[[Training, Record], None]
"""Called after every epoch, before the run is saved. Its time is not counted."""


def start(
    settings: Settings,
    data: ImageSet,
    folder: RunFolder | None = None,
    device: torch.device | None = None,
) -> Training:
    """Make a run, and continue it from the folder's last checkpoint if there is one."""
    training = Training(settings, data, device or torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    checkpoint = folder.checkpoint() if folder is not None else None
    if folder is not None and checkpoint is not None:
        try:
            training.load_state_dict(checkpoint)
        except (LookupError, RuntimeError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(
                f"{folder.path / 'checkpoint.pt'} does not fit the run ({error!r}): it comes from another run or "
                "another version. Move it away to start again"
            ) from error
    return training


def advance(training: Training, folder: RunFolder | None = None, observers: Sequence[Observer] = ()) -> None:
    """Train one epoch, call the observers, then save: so a run killed in between loses no observer's files."""
    record = training.epoch()
    for observer in observers:
        observer(training, record)
    if folder is not None:
        if training.settings.record is not None:
            training.loader.dynamics.save(folder.path / FILE)
        folder.save(training.state_dict())
