"""The sampler in real loaders and frameworks, unchanged."""

import io

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import selective_backprop as sb
from selective_backprop.testing import same
from tests.helpers import NUM_DIGITS, digits, make_model
from tests.sampler.runs import load, make, train


class StatefulRun:
    """A loop over a StatefulDataLoader, which saves the sampler with itself."""

    def __init__(self, method, **options):
        from torchdata.stateful_dataloader import StatefulDataLoader

        self.sampler = make(method, num_epochs=4, batch_size=16)
        self.loader = load(self.sampler, loader=StatefulDataLoader, **options)

    def train(self, epochs, states=None):
        def save():
            if states is not None:
                file = io.BytesIO()
                torch.save(self.loader.state_dict(), file)
                states.append(file.getvalue())

        return train(self.loader, self.sampler, epochs, on_step=save)


@pytest.mark.filterwarnings("ignore:.*set_vital")
@pytest.mark.parametrize("method", [sb.ledger_backprop(max_age=3), sb.infobatch(), sb.repeated_random(0.4)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 2},
        {"num_workers": 2, "snapshot_every_n_steps": 3},
        {"num_workers": 2, "persistent_workers": True},
        {"drop_last": True},
    ],
    ids=str,
)
def test_a_stateful_data_loader_saves_and_resumes_in_mid_epoch(method, options):
    """With workers, torchdata asks for batches and for the sampler's state ahead of training. It is exact even so."""
    pytest.importorskip("torchdata")
    states, epochs = [], []
    whole = StatefulRun(method, **options)
    batches = []
    for epoch in range(4):
        part = whole.train([epoch], states)
        batches += part
        epochs += [epoch] * len(part)
    # Starting workers takes longest. A step of 17 is at another place of an epoch, and between snapshots, each time.
    for number in range(0, len(states), 17 if "num_workers" in options else 3):
        rest = StatefulRun(method, **options)
        rest.loader.load_state_dict(torch.load(io.BytesIO(states[number]), weights_only=True))
        assert rest.train(range(epochs[number], 4)) == batches[number + 1 :]
        assert rest.sampler.stats.trained == whole.sampler.stats.trained
        assert torch.equal(rest.sampler.ledger.loss.nan_to_num(), whole.sampler.ledger.loss.nan_to_num())


@pytest.mark.filterwarnings("ignore:.*set_vital")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_saved_between_epochs(workers):
    pytest.importorskip("torchdata")
    whole, rest = (StatefulRun(None, num_workers=workers) for _ in range(2))
    whole.train([0, 1])
    rest.loader.load_state_dict(whole.loader.state_dict())
    assert rest.train([2, 3]) == whole.train([2, 3])


# ---- frameworks that train


def images(sampler, **options):
    return DataLoader(digits(), batch_size=16, sampler=sampler, **options)


def plain_run(epochs):
    """The same training in a loop of our own."""
    torch.manual_seed(0)
    model = make_model()
    sampler = make(sb.infobatch(), source=NUM_DIGITS, num_epochs=epochs, batch_size=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(epochs):
        for inputs, targets in images(sampler):
            losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
            (losses * sampler.update(losses)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return model, sampler


def same_training(model, sampler, epochs):
    expected, other = plain_run(epochs)
    for one, two in zip(expected.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, two)
    assert 0 < sampler.stats.selectivity == other.stats.selectivity < 1


def test_accelerate_prepares_it():
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    torch.manual_seed(0)
    model = make_model()
    sampler = make(sb.infobatch(), source=NUM_DIGITS, num_epochs=3, batch_size=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, loader = accelerator.prepare(model, optimizer, images(sampler))
    for _ in range(3):
        for inputs, targets in loader:
            losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
            accelerator.backward((losses * sampler.update(losses)).mean())
            optimizer.step()
            optimizer.zero_grad()
    same_training(model, sampler, 3)


def test_batches_that_accelerate_skips_are_an_error_that_names_the_way_out():
    accelerate = pytest.importorskip("accelerate")
    sampler = make(sb.infobatch(), source=NUM_DIGITS, num_epochs=3, batch_size=16)
    loader = accelerate.Accelerator(cpu=True).prepare(images(sampler, drop_last=True))
    for inputs, _ in accelerate.skip_first_batches(loader, 4):
        sampler.update(torch.ones(len(inputs)))
    with pytest.raises(RuntimeError, match="load the sampler's state"):
        next(iter(loader))
    assert not sampler.ledger.has_losses()


def test_accelerate_resumes_in_mid_epoch(tmp_path):
    """By `register_for_checkpointing` alone."""
    accelerate = pytest.importorskip("accelerate")

    def begin():
        torch.manual_seed(0)
        accelerator, model = accelerate.Accelerator(cpu=True), nn.Linear(64, 10)
        sampler = make(sb.infobatch(), source=NUM_DIGITS, num_epochs=3, batch_size=16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        accelerator.register_for_checkpointing(sampler)
        return accelerator, sampler, *accelerator.prepare(model, optimizer, images(sampler))

    def go_on(accelerator, sampler, model, optimizer, loader, save_at=None):
        given, step = [], 0
        for _ in range(sampler.epoch, 3):
            for inputs, targets in loader:
                losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
                accelerator.backward((losses * sampler.update(losses)).mean())
                optimizer.step()
                optimizer.zero_grad()
                given.append(sampler.ids.tolist())
                step += 1
                if step == save_at:
                    accelerator.save_state(str(tmp_path))
        return given

    whole = begin()
    batches = go_on(*whole, save_at=17)
    resumed = begin()
    resumed[0].load_state(str(tmp_path))
    assert go_on(*resumed) == batches[17:]
    assert same(resumed[1].ledger.state_dict(), whole[1].ledger.state_dict())


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*in eval mode at the start")
@pytest.mark.filterwarnings("ignore:.*have no `val_dataloader`")
@pytest.mark.parametrize("workers", [0, 2])
def test_lightning(tmp_path, workers):
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.model = make_model()
            self.sampler = make(sb.infobatch(), source=NUM_DIGITS, num_epochs=3, batch_size=16)

        def train_dataloader(self):
            return images(self.sampler, num_workers=workers)

        def training_step(self, batch, _):
            inputs, targets = batch
            losses = nn.functional.cross_entropy(self.model(inputs), targets, reduction="none")
            return (losses * self.sampler.update(losses)).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.model.parameters(), lr=0.05)

        def on_fit_start(self):
            self.model[5].eval()

    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=3,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(module)
    assert module.sampler.stats.batches == trainer.global_step
    assert 0 < module.sampler.stats.selectivity < 1
    assert module.sampler.epoch == 3
    if not workers:
        same_training(module.model, module.sampler, 3)


QUIET = {
    "accelerator": "cpu",
    "max_epochs": 3,
    "use_distributed_sampler": False,
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


@pytest.mark.filterwarnings("ignore")  # Lightning's own
@pytest.mark.parametrize("every", [{"every_n_train_steps": 17}, {"every_n_epochs": 1}], ids=str)
def test_lightning_resumes_by_ckpt_path(tmp_path, every):
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.model, self.given = nn.Linear(64, 10), []
            self.sampler = make(sb.infobatch(), source=NUM_DIGITS, num_epochs=3, batch_size=16)

        def train_dataloader(self):
            return images(self.sampler)

        def training_step(self, batch, _):
            inputs, targets = batch
            losses = nn.functional.cross_entropy(self.model(inputs), targets, reduction="none")
            weights = self.sampler.update(losses)
            self.given.append(self.sampler.ids.tolist())
            return (losses * weights).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.model.parameters(), lr=0.05)

        def on_save_checkpoint(self, checkpoint):
            checkpoint["sampler"] = self.sampler.state_dict()

        def on_load_checkpoint(self, checkpoint):
            self.sampler.load_state_dict(checkpoint["sampler"])

    def fit(path=None):
        module = Module()
        saving = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, **every)
        lightning.Trainer(callbacks=[saving], default_root_dir=tmp_path, **QUIET).fit(module, ckpt_path=path)
        return module

    whole = fit()
    checkpoints = sorted(tmp_path.glob("*.ckpt"), key=lambda path: int(path.stem.partition("=")[2]))
    first = int(checkpoints[0].stem.partition("=")[2])
    resumed = fit(checkpoints[0])
    assert resumed.given == whole.given[first:]
    assert resumed.sampler.epoch == 3
    assert same(resumed.sampler.ledger.state_dict(), whole.sampler.ledger.state_dict())


@pytest.mark.parametrize("at", [11, 18])
def test_the_trainer_resumes_from_a_checkpoint(tmp_path, at):
    """In mid-epoch, and later, when the Trainer's count of epochs by steps is behind."""
    transformers = pytest.importorskip("transformers")
    from tests.integrations import texts
    from tests.integrations.test_transformers import arguments

    def fit(checkpoint=None):
        sampler, given = make(sb.methods.ledger_percentile(0.5), source=60, num_epochs=4), []

        class SampledTrainer(transformers.Trainer):
            def _get_train_sampler(self, *_):
                return sampler

            def compute_loss(self, model, inputs, return_outputs=False, **_):
                labels = inputs.pop("labels")
                losses = nn.functional.cross_entropy(model(**inputs).logits, labels, reduction="none")
                weights = sampler.update(losses)
                given.append(sampler.ids.tolist())
                return (losses * weights).mean()

        class WithSampler(transformers.TrainerCallback):
            def on_save(self, args, state, control, **_):
                torch.save(sampler.state_dict(), f"{args.output_dir}/checkpoint-{state.global_step}/sampler.pt")

            def on_epoch_end(self, args, state, control, **_):
                control.should_training_stop |= sampler.epoch >= args.num_train_epochs

        model = texts.classifier()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0  # the same losses, whatever was drawn before
        if checkpoint is not None:
            sampler.load_state_dict(torch.load(f"{checkpoint}/sampler.pt", weights_only=True))
        trainer = SampledTrainer(
            model=model,
            args=arguments(tmp_path, num_train_epochs=4, save_strategy="steps", save_steps=at, ignore_data_skip=True),
            train_dataset=texts.classification(60),
            data_collator=texts.collate,
            callbacks=[WithSampler()],
        )
        trainer.train(resume_from_checkpoint=checkpoint)
        return sampler, given, trainer.state.global_step

    whole, batches, steps = fit()
    resumed, rest, steps_of_both = fit(f"{tmp_path}/checkpoint-{at}")
    assert rest == batches[at:] and steps == steps_of_both == len(batches)
    assert resumed.epoch == 4 and same(resumed.ledger.state_dict(), whole.ledger.state_dict())


def test_the_trainer_takes_it_in_two_lines(tmp_path):
    transformers = pytest.importorskip("transformers")
    from tests.integrations import texts
    from tests.integrations.test_transformers import arguments

    class SampledTrainer(transformers.Trainer):
        def _get_train_sampler(self, *_):
            return sampler

        def compute_loss(self, model, inputs, return_outputs=False, **_):
            labels = inputs.pop("labels")
            losses = nn.functional.cross_entropy(model(**inputs).logits, labels, reduction="none")
            return (losses * sampler.update(losses)).mean()

    data = texts.classification(60)
    sampler = make(sb.methods.ledger_percentile(0.5), source=60)
    trainer = SampledTrainer(
        model=texts.classifier(),
        args=arguments(tmp_path, num_train_epochs=3),
        train_dataset=data,
        data_collator=texts.collate,
    )
    trainer.train()
    assert sampler.ledger.loss_epoch.ge(0).all() and sampler.stats.selectivity < 1
    assert sampler.stats.batches == trainer.state.global_step
