"""Hugging Face Trainer: real training of tiny models on real text."""

import functools
import importlib
import os
import signal
import sys

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra [transformers]")
from transformers import (
    BertForSequenceClassification,
    CLIPVisionConfig,
    DataCollatorWithFlattening,
    LlavaConfig,
    LlavaForConditionalGeneration,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import selective_backprop as sb
from selective_backprop.integrations.transformers import SelectiveTrainer
from selective_backprop.testing import same
from tests.integrations import texts
from tests.integrations.forked import fork, ranks, run_script
from tests.processes import ROOT

TASKS = {"classification": (texts.classifier, texts.classification), "language": (texts.language_model, texts.language)}


def arguments(folder, **options):
    defaults = {
        "per_device_train_batch_size": 8,
        "num_train_epochs": 2,
        "learning_rate": 1e-3,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "logging_steps": 5,
    }
    return TrainingArguments(output_dir=str(folder), **defaults | options)


def make(
    folder,
    method=None,
    *,
    task="classification",
    collator=texts.collate,
    count=203,
    options=None,
    model=None,
    kind=SelectiveTrainer,
    **settings,
):
    """A SelectiveTrainer, or without a method Trainer itself."""
    make_model, data = TASKS[task]
    settings |= {} if method is None else {"method": method}
    return (Trainer if method is None else kind)(
        model=(model or make_model)(),
        args=arguments(folder, **(options or {})),
        train_dataset=data(count),
        data_collator=collator,
        **settings,
    )


class Spy(TrainerCallback):
    """What every optimizer step saw: the sizes of its batches, the learning rate, the gradient."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.sizes, self.rates, self.gradients, self.batches, self.weights = [], [], [], [], []
        self._step = []
        inner, get_batch_samples, watched = trainer.training_step, trainer.get_batch_samples, []

        def watched_samples(*args):
            if trainer.steps not in watched:
                watched.append(trainer.steps)
                take = trainer.steps.take

                def watched_take(*args):
                    slots = take(*args)
                    self.weights += [batch for batch in slots if batch is not None]
                    return slots

                trainer.steps.take = watched_take
            return get_batch_samples(*args)

        def training_step(model, inputs, num_items_in_batch=None):
            if "labels" in inputs:  # not an empty slot
                self._step.append({key: value.clone() for key, value in inputs.items()})
            return inner(model, inputs, num_items_in_batch)

        trainer.training_step = training_step
        if isinstance(trainer, SelectiveTrainer):
            trainer.get_batch_samples = watched_samples
        trainer.add_callback(self)

    def on_pre_optimizer_step(self, args, state, control, **rest):
        model = self.trainer.model
        self.weights_before = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        self.sizes.append([len(batch["labels"]) for batch in self._step])
        self.batches.append(self._step)
        self._step = []

    def on_step_end(self, args, state, control, **rest):
        self.rates.append(self.trainer.lr_scheduler.get_last_lr()[0])


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("language", {"gradient_accumulation_steps": 4, "num_train_epochs": 1.5}),
        ("classification", {"label_smoothing_factor": 0.1, "max_steps": 30, "lr_scheduler_type": "cosine"}),
    ],
    ids=["accumulation and part of an epoch", "label smoothing and max_steps"],
)
def test_2_selectivity_1_is_trainer_itself_to_the_bit(task, options, tmp_path):
    options = {"warmup_steps": 3} | options
    plain = make(tmp_path, task=task, options=options)
    spies = [Spy(plain)]
    plain.train()
    own = make(tmp_path, sb.selective_backprop(1.0), task=task, options=options)
    spies.append(Spy(own))
    own.train()
    assert spies[0].sizes == spies[1].sizes and len({len(sizes) for sizes in spies[0].sizes}) <= 2
    assert spies[0].rates == pytest.approx(spies[1].rates, rel=1e-12)
    assert same(plain.model.state_dict(), own.model.state_dict())
    assert own.selective_loader.stats.selectivity == 1


def test_batches_are_full_and_the_schedule_ends_with_the_run(tmp_path):
    trainer = make(tmp_path, sb.selective_backprop(0.4, fixed_size=True), options={"num_train_epochs": 4})
    spy = Spy(trainer)
    trainer.train()
    stats = trainer.selective_loader.stats
    assert sum(sizes != [8] for sizes in spy.sizes) <= 4 * 2, "only the last two batches of an epoch"
    assert all(4 <= size <= 8 for (size,) in spy.sizes)
    assert stats.offered == stats.scored == 4 * 203
    assert abs(stats.selectivity - 0.4) < 0.03
    assert sum(sizes[0] for sizes in spy.sizes) == stats.trained
    assert len(spy.sizes) == trainer.state.global_step < 0.5 * trainer.state.max_steps
    assert trainer.state.epoch == 4
    assert spy.rates[-1] == 0 and spy.rates[len(spy.rates) // 2] == pytest.approx(5e-4, rel=0.1)
    assert any("selectivity" in entry for entry in trainer.state.log_history)


def without_dropout(trainer):
    trainer.model.apply(lambda module: setattr(module, "p", 0.0) if isinstance(module, torch.nn.Dropout) else None)
    trainer.model.apply(lambda module: setattr(module, "attention_dropout", 0.0))
    return trainer


def rows_of(batches):
    """The examples of these batches, without their padding."""
    for batch in batches:
        for row in range(len(batch["labels"])):
            ids = batch["input_ids"][row][batch["attention_mask"][row] == 1].tolist()
            label = batch["labels"][row]
            yield {"input_ids": ids} | ({"labels": int(label)} if label.dim() == 0 else {})


class OwnLoader(SelectiveTrainer):
    def get_train_dataloader(self):
        """As users write it, who do not call accelerator.prepare."""
        return torch.utils.data.DataLoader(self.train_dataset, 8, shuffle=True, collate_fn=self.data_collator)


def test_a_loader_of_the_users_own(tmp_path):
    trainer = make(tmp_path, sb.methods.ledger_percentile(0.5), kind=OwnLoader)
    trainer.train()
    assert trainer.selective_loader.stats.offered == 406 and trainer.selective_loader.stats.selectivity < 0.8


@pytest.mark.parametrize(("task", "accumulation"), [("language", 3), ("classification", 1)])
def test_a_step_is_that_of_trainer_on_the_selected_alone(task, accumulation, tmp_path):
    options = {"gradient_accumulation_steps": accumulation, "max_steps": 1, "max_grad_norm": 0}
    trainer = without_dropout(make(tmp_path, sb.selective_backprop(0.4), task=task, options=options))
    spy = Spy(trainer)
    trainer.train()
    assert spy.sizes == [[8] * accumulation]
    plain = without_dropout(make(tmp_path, task=task, options=options | {"train_sampling_strategy": "sequential"}))
    plain.train_dataset = list(rows_of(spy.batches[0]))
    expected = Spy(plain)
    plain.train()
    for name, gradient in spy.gradients[0].items():
        torch.testing.assert_close(gradient, expected.gradients[0][name], rtol=1e-4, atol=1e-6)
    assert trainer.state.log_history[-1]["train_loss"] == pytest.approx(plain.state.log_history[-1]["train_loss"])


@pytest.mark.parametrize("accumulation", [1, 3])
def test_weights_multiply_each_examples_part_of_the_loss(accumulation, tmp_path):
    options = {"gradient_accumulation_steps": accumulation, "max_steps": 1, "max_grad_norm": 0}
    method = sb.selective_backprop(0.4, unbiased=True)
    trainer = without_dropout(make(tmp_path, method, task="language", options=options))
    spy = Spy(trainer)
    trainer.train()
    assert any((batch.weights != 1).any() for batch in spy.weights)
    model, total, all_tokens = texts.language_model().eval(), 0, 0
    for inputs, batch in zip(spy.batches[0], spy.weights, strict=True):
        labels, weights = inputs["labels"][:, 1:], batch.weights
        losses = sb.token_cross_entropy(model(**inputs).logits[:, :-1], labels, reduction="none").sum(1)
        tokens = (labels != -100).sum(1)
        mean = weights.mean() * (losses * weights).sum() / (tokens * weights).sum()  # over tokens of a batch
        total, all_tokens = total + mean * tokens.sum(), all_tokens + tokens.sum()
    (total / all_tokens).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(spy.gradients[0][name], parameter.grad, rtol=1e-4, atol=1e-6)


def own_class():
    model = texts.gpt2()
    model.__class__ = type("Own", (type(model),), {})  # as users derive one, to change a head or a loss
    return model


def vision_model():
    """A model that reads pictures and answers in text, here trained on texts alone."""
    text = texts.language_model().config
    size = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    vision = CLIPVisionConfig(image_size=8, patch_size=4, **size)
    return LlavaForConditionalGeneration(LlavaConfig(vision_config=vision, text_config=text, image_token_index=127))


@pytest.mark.parametrize("model", [texts.language_model, texts.gpt2, own_class, vision_model])
def test_scores_are_the_models_own_loss_of_each_example(model, tmp_path):
    options = {"max_steps": 1, "learning_rate": 0.0}
    trainer = make(tmp_path, sb.top_k(0.5), task="language", options=options, model=model)
    trainer.train()
    ledger = trainer.selective_loader.ledger
    known = ledger.score.isfinite().nonzero().flatten().tolist()
    assert len(known) >= 16
    with torch.no_grad():
        own = [trainer.model.eval()(**texts.collate([trainer.train_dataset[i]])).loss for i in known]
    torch.testing.assert_close(ledger.score[known], torch.stack(own), rtol=1e-4, atol=1e-5)


CLASS_WEIGHTS = torch.tensor([1.0, 5.0])


def weighted_losses(outputs, batch):
    return torch.nn.functional.cross_entropy(outputs.logits, batch["labels"], weight=CLASS_WEIGHTS, reduction="none")


class OwnLoss(SelectiveTrainer):
    """Class weights, as tutorials add them."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        loss = weighted_losses(outputs, inputs).mean()
        return (loss, outputs) if return_outputs else loss


class OwnReportedLoss(SelectiveTrainer):
    loss_is_scaled_for_ga = False

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        if self.batch is None:
            loss = weighted_losses(outputs, inputs).mean()
        else:
            loss = self.selective_loader.loss(outputs, inputs, self.batch)
        return (loss, outputs) if return_outputs else loss


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (sb.ledger_backprop(), r"training losses"),
        (sb.selective_backprop(0.5, unbiased=True), r"self\.selective_loader\.weights"),
    ],
)
def test_a_compute_loss_that_reports_no_losses_is_an_error_in_the_first_step(method, message, tmp_path):
    trainer = make(tmp_path, method, kind=OwnLoss)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    with pytest.raises(RuntimeError, match=message):
        trainer.train()
    assert same(before, trainer.model.state_dict())
    make(tmp_path, sb.selective_backprop(0.5), kind=OwnLoss, options={"max_steps": 2}).train()


@pytest.mark.parametrize(("epochs", "accumulation"), [(2, 1), (1, 2)])
def test_class_weights_by_compute_loss_func_or_by_a_compute_loss_that_reports(epochs, accumulation, tmp_path):
    def loss_of_batch(outputs, labels, num_items_in_batch=None):
        losses = weighted_losses(outputs, {"labels": labels})
        return losses.sum() / (num_items_in_batch or len(losses))

    # With SGD, which a factor of the gradient does not leave as it is.
    options = {"num_train_epochs": epochs, "gradient_accumulation_steps": accumulation, "optim": "sgd"}
    options |= {"max_grad_norm": 0, "learning_rate": 0.1}
    own = {"count": 208, "loss_fn": weighted_losses, "options": options}  # full batches: means of means are means
    by_function = make(tmp_path, sb.infobatch(), compute_loss_func=loss_of_batch, **own)
    by_method = make(tmp_path, sb.infobatch(), kind=OwnReportedLoss, **own)
    for trainer in (by_function, by_method):
        torch.manual_seed(0)  # dropout
        trainer.train()
        assert trainer.selective_loader.ledger.has_losses()
        assert trainer.selective_loader.stats.selectivity < 0.95 or epochs == 1
    for one, other in zip(*(trainer.model.parameters() for trainer in (by_function, by_method)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


class WeighsClasses(BertForSequenceClassification):
    def forward(self, input_ids, attention_mask=None, labels=None):
        outputs = super().forward(input_ids, attention_mask)
        if labels is not None:
            outputs.loss = torch.nn.functional.cross_entropy(outputs.logits, labels, weight=CLASS_WEIGHTS)
        return outputs


def test_a_model_whose_own_loss_is_another_one_is_told_once_and_refused_with_weights(tmp_path, caplog):
    def model():
        return WeighsClasses(texts.classifier().config)

    make(tmp_path, sb.ledger_backprop(), model=model, options={"max_steps": 4}).train()
    assert sum("which examples are scored by" in record.message for record in caplog.records) == 1
    with pytest.raises(ValueError, match="infobatch"):
        make(tmp_path, sb.infobatch(), model=model).train()
    caplog.clear()
    options = {"num_train_epochs": 1, "gradient_accumulation_steps": 2}
    make(tmp_path, sb.infobatch(), model=model, loss_fn=weighted_losses, options=options).train()
    make(tmp_path, sb.infobatch(), task="language", options=options).train()
    assert not any("which examples are scored by" in record.message for record in caplog.records)


def test_a_fused_loss_without_logits_is_refused_where_losses_are_needed(tmp_path):
    def fused():
        model = texts.language_model()
        inner = model.forward

        @functools.wraps(inner)  # Trainer reads its signature
        def forward(*args, labels=None, **options):
            outputs = inner(*args, labels=labels, **options)
            if model.training and labels is not None:
                outputs["logits"] = None  # as Liger's fused linear cross-entropy
            return outputs

        model.forward = forward
        return model

    options = {"num_train_epochs": 1}
    for method in (sb.methods.ledger_percentile(0.5), sb.infobatch()):
        with pytest.raises(ValueError, match="use_liger_kernel=False"):
            make(tmp_path, method, task="language", options=options, model=fused).train()
    weights = []
    for model in (None, fused):
        trainer = make(tmp_path, sb.selective_backprop(1.0), task="language", options=options, model=model)
        trainer.train()
        weights.append(trainer.model.state_dict())
    assert same(*weights)


def test_the_last_step_of_an_epoch_has_the_batches_that_are_left(tmp_path, task="language"):
    options = {"gradient_accumulation_steps": 6, "num_train_epochs": 4, "include_num_input_tokens_seen": "non_padding"}
    trainer = make(tmp_path, sb.selective_backprop(0.4, fixed_size=True), task=task, options=options)
    spy = Spy(trainer)
    trainer.train()
    assert all(1 <= len(sizes) <= 6 for sizes in spy.sizes) and trainer.state.epoch == 4
    assert sum(len(sizes) < 6 for sizes in spy.sizes) == 4, "one in each epoch"
    assert sum(map(sum, spy.sizes)) == trainer.selective_loader.stats.trained, "nothing selected is lost"
    tokens = sum(int(batch["attention_mask"].sum()) for step in spy.batches for batch in step)
    assert trainer.state.num_input_tokens_seen == tokens


def test_a_step_with_fewer_batches_than_usual_has_the_gradient_of_these_alone(tmp_path, task="language"):
    options = {"gradient_accumulation_steps": 5, "num_train_epochs": 1, "max_grad_norm": 0, "learning_rate": 0.0}
    trainer = without_dropout(
        make(tmp_path, sb.selective_backprop(0.5, fixed_size=True), task=task, options=options, count=40)
    )
    spy = Spy(trainer)
    trainer.train()
    assert spy.sizes == [[8, 8, 4]], "20 of 40 examples; the trainer counts 5 batches of 8"
    options |= {"train_sampling_strategy": "sequential", "gradient_accumulation_steps": 3}
    plain = without_dropout(make(tmp_path, task=task, options=options | {"per_device_train_batch_size": 1}))
    plain.train_dataset = spy.batches[0]
    plain.data_collator = lambda batches: batches[0]
    expected = Spy(plain)
    plain.train()
    for name, gradient in spy.gradients[0].items():
        torch.testing.assert_close(gradient, expected.gradients[0][name], rtol=1e-4, atol=1e-6)
    assert trainer.state.log_history[-1]["train_loss"] == pytest.approx(plain.state.log_history[-1]["train_loss"])


def test_on_stats_is_told_of_every_epoch(tmp_path):
    told = []
    trainer = make(tmp_path, sb.selective_backprop(0.5), on_stats=told.append)
    trainer.train()
    assert [numbers["epoch"] for numbers in told] == [1, 2]
    assert sum(numbers["trained"] for numbers in told) == trainer.selective_loader.stats.trained


class LeavesEpochs(TrainerCallback):
    def on_step_end(self, args, state, control, **rest):
        control.should_epoch_stop = state.global_step % 4 == 0


def test_an_epoch_that_a_callback_ends_early_counts_as_one(tmp_path):
    trainer = make(tmp_path, sb.traditional(), callbacks=[LeavesEpochs()], options={"num_train_epochs": 3})
    trainer.train()
    assert trainer.state.global_step == 12 and trainer.selective_loader.stats.offered == 3 * 32
    assert trainer.selective_loader.epoch == 3


@pytest.mark.parametrize(
    "method",
    [
        sb.methods.ledger_percentile(selectivity=0.5),
        sb.infobatch(prune=0.5),
        sb.methods.composer_backprop(0.5, start=0.2),
    ],
)
def test_methods_by_id_with_weights_and_windows(method, tmp_path):
    trainer = make(tmp_path, method, task="language", options={"num_train_epochs": 3})
    trainer.train()
    assert trainer.state.epoch == 3 and trainer.selective_loader.stats.selectivity < 0.9


def test_evaluation_is_untouched(tmp_path):
    plain, own = make(tmp_path), make(tmp_path, sb.selective_backprop(0.3))
    own.model.load_state_dict(plain.model.state_dict())
    data = texts.classification(50)
    assert plain.evaluate(data)["eval_loss"] == own.evaluate(data)["eval_loss"]
    own.train()
    plain.model.load_state_dict(own.model.state_dict())
    offered = own.selective_loader.stats.offered
    assert plain.evaluate(data)["eval_loss"] == own.evaluate(data)["eval_loss"]
    assert own.selective_loader.stats.offered == offered


RESUMED = {"sb": sb.selective_backprop(0.5), "ledger": sb.methods.ledger_percentile(selectivity=0.5)}
SAVING = {"save_strategy": "steps", "save_steps": 3, "num_train_epochs": 3, "gradient_accumulation_steps": 3}


def finished(trainer, **options):
    trainer.train(**options)
    state = trainer.state
    return {"model": trainer.model.state_dict(), "rate": trainer.lr_scheduler.get_last_lr(), "steps": state.global_step}


class Die(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **rest):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def killed_at(folder, step, rank=0):
    """A run that is killed after a step, on one of its ranks."""
    trainer = make(folder / "killed", RESUMED["sb"], collator=texts.collate_noisily, options=SAVING)
    if int(os.environ.get("RANK", 0)) == rank:
        trainer.add_callback(Die(step))
    trainer.train()


@pytest.mark.parametrize("kind", RESUMED)
def test_5_resumed_from_any_checkpoint(kind, tmp_path):
    settings = {"collator": texts.collate_noisily, "options": SAVING | {"save_steps": 2}, "count": 91}
    expected = finished(make(tmp_path / "whole", RESUMED[kind], **settings))
    for name in ("checkpoint-2", "checkpoint-4"):
        part = make(tmp_path / "part", RESUMED[kind], **settings)
        found = finished(part, resume_from_checkpoint=str(tmp_path / "whole" / name))
        assert same(expected, found), name


def test_a_checkpoint_of_trainer_itself_is_refused(tmp_path):
    make(tmp_path, options={"max_steps": 3, "save_strategy": "steps", "save_steps": 3}).train()
    with pytest.raises(FileNotFoundError, match=r"selective_backprop\.pt"):
        make(tmp_path, sb.top_k(0.5)).train(resume_from_checkpoint=True)


@pytest.mark.parametrize(
    ("method", "options", "settings", "error", "message"),
    [
        ("sb", {}, {}, TypeError, "method"),
        (sb.top_k(0.5), {}, {"compute_loss_func": print}, ValueError, "pass loss_fn= too"),
        (sb.methods.composer_backprop(), {"max_steps": 5}, {}, ValueError, "use num_train_epochs"),
    ],
)
def test_what_cannot_work_is_refused_at_construction(method, options, settings, error, message, tmp_path):
    with pytest.raises(error, match=message):
        make(tmp_path, method, options=options, **settings)


def test_a_collator_that_joins_examples_is_refused(tmp_path):
    with pytest.raises(ValueError, match="SelectiveSFTTrainer"):
        make(tmp_path, sb.ledger_backprop(), task="language", collator=DataCollatorWithFlattening())


@pytest.mark.parametrize(("method", "epochs"), [(sb.repeated_random(0.5), 2.5), (sb.top_k(0.5), 2)])
def test_trainers_progress_bar_ends_full(method, epochs, tmp_path):
    trainer = make(tmp_path, method, options={"disable_tqdm": False, "num_train_epochs": epochs})
    seen = []

    class Look(TrainerCallback):
        def on_step_end(self, args, state, control, **rest):
            (bar,) = (c.training_bar for c in trainer.callback_handler.callbacks if isinstance(c, ProgressCallback))
            seen.append((bar.n, bar.total))

    trainer.add_callback(Look())
    trainer.train()
    assert seen[-1] == (trainer.state.global_step,) * 2
    assert seen[-1][1] < trainer.state.max_steps  # or nothing was skipped, and the test would prove nothing
    assert all(taken < total for taken, total in seen[:-1])


def test_batches_without_labels_are_refused(tmp_path):
    def collate(examples):
        return {key: value for key, value in texts.collate(examples).items() if key != "labels"}

    with pytest.raises(ValueError, match=r"labels.*input_ids"):
        make(tmp_path, sb.top_k(0.5), collator=collate).train()


def on_a_rank(folder):
    saving = {"collator": texts.collate_noisily, "options": SAVING}
    result = {
        name: finished(make(folder, method))
        for name, method in (("plain", None), ("everything", sb.selective_backprop(1.0)))
    }
    result["undisturbed"] = finished(make(folder / "undisturbed", RESUMED["sb"], **saving))
    result["resumed"] = finished(make(folder / "killed", RESUMED["sb"], **saving), resume_from_checkpoint=True)
    trainer = make(folder, sb.stale_selective_backprop(0.4, every=2), options={"num_train_epochs": 4})
    spy = Spy(trainer)
    result["sb"] = finished(trainer)
    return result | {"sizes": spy.sizes, "selectivity": trainer.selective_loader.stats.selectivity}


def test_two_ranks(tmp_path):
    other, killed = fork(functools.partial(killed_at, step=4, rank=1), tmp_path, ranks=2)
    assert killed == -signal.SIGKILL and other != 0
    assert sorted(os.listdir(tmp_path / "killed")) == ["checkpoint-3"]
    first, second = ranks(on_a_rank, tmp_path)
    assert same(first["plain"], first["everything"]), "selectivity 1 is Trainer itself"
    assert same(first["undisturbed"], first["resumed"])
    for name in ("plain", "everything", "undisturbed", "resumed", "sb"):
        assert same(first[name], second[name]), f"ranks agree on {name}"
    sizes = list(zip(first["sizes"], second["sizes"], strict=True))
    assert all(abs(a - b) <= 1 for (a,), (b,) in sizes), "what is left of an epoch may be an odd number"
    assert sum(both != ([8], [8]) for both in sizes) <= 4 * 2, "only the last two batches of an epoch"
    assert 0.3 < (first["selectivity"] + second["selectivity"]) / 2 < 0.5


def test_a_missing_extra_names_its_pip_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    monkeypatch.delitem(sys.modules, SelectiveTrainer.__module__)
    with pytest.raises(ImportError, match=r"pip install 'selective-backprop\[transformers\]'"):
        importlib.import_module(SelectiveTrainer.__module__)


def test_the_example_learns(tmp_path):
    printed = run_script(ROOT / "examples" / "transformers_text.py", tmp_path, "--epochs", 4)
    assert "offered 6,144, trained " in printed
    assert float(printed.split("test accuracy ")[1].split()[0]) > 0.9
