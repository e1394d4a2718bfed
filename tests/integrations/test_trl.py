"""TRL: real training of tiny models on real text, by the trainers of TRL itself and by ours."""

import importlib
import sys

import pytest
import torch

pytest.importorskip("trl", reason="needs the extra [trl]")
import datasets
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer

import selective_backprop as sb
from selective_backprop.integrations.trl import SelectiveDPOTrainer, SelectiveRewardTrainer, SelectiveSFTTrainer
from selective_backprop.integrations.trl.packing import DocumentCollator
from selective_backprop.testing import same
from selective_backprop.types import Batch
from tests.integrations import trl_texts as texts
from tests.integrations.forked import ranks
from tests.integrations.trl_ranks import sharded_runs

datasets.disable_progress_bars()
# TRL tells by FutureWarning of an extra forward pass; everything else that other packages warn of is their own affair.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.filterwarnings("error::FutureWarning")]
QUIET = {
    "save_strategy": "no",
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
    "gradient_checkpointing": False,
    "learning_rate": 1e-2,
    "logging_steps": 2,
}
PACKED = {"packing": True, "max_length": 48, "per_device_train_batch_size": 2}


def sft(
    folder,
    method=None,
    *,
    data=texts.text,
    model=None,
    make_model=texts.make_model,
    lora=False,
    tokenizer=None,
    settings=None,
    **options,
):
    """A SelectiveSFTTrainer, or without a method SFTTrainer itself."""
    defaults = {"max_length": 48, "num_train_epochs": 2, "per_device_train_batch_size": 8}
    settings = {"peft_config": texts.make_lora() if lora else None} | (settings or {})
    settings |= {} if method is None else {"method": method}
    return (SFTTrainer if method is None else SelectiveSFTTrainer)(
        model=model or make_model(),
        args=SFTConfig(output_dir=str(folder), **QUIET | defaults | options),
        train_dataset=data(),
        processing_class=tokenizer or texts.make_tokenizer(),
        **settings,
    )


def trained(trainer):
    trainer.train()
    return trainer


def losses_in(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.fixture
def calls(monkeypatch):
    """Counts forward passes of the language model, by whether they train."""
    counted = {True: 0, False: 0}
    kind = type(texts.make_model().model)
    inner = kind.forward

    def forward(self, *args, **options):
        counted[torch.is_grad_enabled()] += 1
        return inner(self, *args, **options)

    monkeypatch.setattr(kind, "forward", forward)
    return counted


# ---- selectivity 1 is TRL itself

KINDS = {
    "completion only, accumulated": {"data": texts.pairs, "gradient_accumulation_steps": 2},
    "chat, dft": {"data": texts.chats, "loss_type": "dft"},
    "packed, LoRA": PACKED | {"lora": True},
    "odd lengths, packed": PACKED | {"data": texts.odd, "gradient_accumulation_steps": 3, "num_train_epochs": 1},
    "virtual tokens": {"settings": {"peft_config": texts.make_prompt()}, "num_train_epochs": 1},
    "experts, with the loss that balances them": {"make_model": texts.make_experts, "num_train_epochs": 1},
    "a formatting function": {"settings": {"formatting_func": lambda row: row["text"].upper()}, "num_train_epochs": 1},
}


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS.keys())
def test_2_selectivity_1_is_trl_itself_to_the_bit(options, tmp_path):
    plain, own = (trained(sft(tmp_path, method, **options)) for method in (None, sb.methods.ledger_percentile(1.0)))
    assert same(plain.model.state_dict(), own.model.state_dict())
    assert losses_in(plain) == losses_in(own)
    assert own.selective_loader.stats.selectivity == 1


def test_2_a_stream_is_trained_on_as_by_trl_itself(tmp_path):
    def stream():
        return texts.text().to_iterable_dataset()

    plain, own = (trained(sft(tmp_path, method, data=stream, max_steps=9)) for method in (None, sb.traditional()))
    assert same(plain.model.state_dict(), own.model.state_dict())
    stats = trained(sft(tmp_path, sb.selective_backprop(0.5), data=stream, max_steps=9)).selective_loader.stats
    assert 0 < stats.trained < stats.offered


def test_weights_and_losses_with_virtual_tokens(tmp_path):
    settings = {"peft_config": texts.make_prompt()}
    trainer = trained(sft(tmp_path, sb.infobatch(until=1.0), settings=settings, num_train_epochs=3))
    assert 0 < trainer.selective_loader.stats.trained < trainer.selective_loader.stats.offered
    trainer = trained(
        sft(tmp_path, sb.methods.ledger_percentile(1.0), settings=settings, num_train_epochs=1, learning_rate=0.0)
    )
    row, model = trainer.documents[7], trainer.model.eval()
    with torch.no_grad():
        alone = model(**{name: torch.tensor([row[name]]) for name in ("input_ids", "labels")}).loss
    known = trainer.selective_loader.ledger.rows(torch.tensor([7])).loss
    assert float(known) == pytest.approx(float(alone), rel=1e-4)


PREFERENCES = {
    "dpo": (DPOTrainer, SelectiveDPOTrainer, DPOConfig, texts.make_model, "CAUSAL_LM"),
    "reward": (RewardTrainer, SelectiveRewardTrainer, RewardConfig, texts.make_classifier, "SEQ_CLS"),
}


def preference(kind, folder, method=None, *, lora=True, **options):
    plain, selective, config, make, task = PREFERENCES[kind]
    make().save_pretrained(folder / "model")  # DPO loads its reference from there
    settings = {} if method is None else {"method": method}
    options = {"per_device_train_batch_size": 8, "num_train_epochs": 2, "max_length": 48} | options
    return (plain if method is None else selective)(
        model=str(folder / "model"),
        args=config(output_dir=str(folder), **QUIET | options),
        train_dataset=texts.preferences(),
        processing_class=texts.make_tokenizer(),
        peft_config=texts.make_lora(task) if lora else None,
        **settings,
    )


@pytest.mark.parametrize(("kind", "lora"), [("dpo", True), ("reward", False)])
def test_2_selectivity_1_is_the_preference_trainer_itself_to_the_bit(kind, lora, tmp_path):
    plain, own = (trained(preference(kind, tmp_path, m, lora=lora)) for m in (None, sb.methods.ledger_percentile(1.0)))
    assert same(plain.model.state_dict(), own.model.state_dict())


# ---- one pass


@pytest.mark.parametrize("options", [{}, PACKED, {"data": texts.pairs, "lora": True}], ids=["text", "packed", "LoRA"])
def test_a_training_step_is_one_forward_pass(options, tmp_path, calls):
    trainer = sft(tmp_path, sb.methods.ledger_percentile(0.5), **options)
    made, passes = [], trainer.passes
    trainer.passes = lambda batch: made.append(passes(batch)) or made[-1]
    trained(trainer)
    assert len(made) == trainer.selective_loader.stats.batches
    assert calls == {True: sum(map(len, made)), False: 0}
    assert all(len(each) == 1 for each in made) or trainer.padding_free, "more only if a row would be too long"


def test_a_selection_pass_is_one_forward_pass_per_candidate_batch(tmp_path, calls):
    trainer = trained(sft(tmp_path, sb.selective_backprop(0.5)))
    assert calls[True] == trainer.selective_loader.stats.batches
    assert calls[False] == trainer.selective_loader.stats.offered / 61 * 8, "8 candidate batches per epoch"


def test_the_loss_of_each_example_is_that_of_the_model_on_it_alone(tmp_path):
    for options in ({}, PACKED, {"data": texts.pairs}):
        trainer = sft(
            tmp_path, sb.methods.ledger_percentile(1.0), num_train_epochs=1, **{**options, "learning_rate": 0.0}
        )
        trained(trainer)
        known, model = trainer.selective_loader.ledger, trainer.model.eval()
        rows = known.rows(torch.arange(len(trainer.documents)))
        for i in (0, 7, 33):
            row = trainer.documents[i]
            batch = {name: torch.tensor([row[name]]) for name in ("input_ids", "labels")}
            with torch.no_grad():
                assert float(rows.loss[i]) == pytest.approx(float(model(**batch).loss), rel=1e-4)


# ---- packing


def test_ids_survive_packing(tmp_path):
    trainer = sft(tmp_path, sb.methods.ledger_percentile(0.5), **PACKED, shuffle_dataset=True)
    tokenizer, data = trainer.processing_class, texts.text()
    assert trainer.documents["row"][:] == list(range(61))
    for i in (0, 11, 60):
        whole = tokenizer(data[i]["text"] + "<eos>")["input_ids"]
        assert trainer.documents[i]["input_ids"] == whole[:48]


def gradients(trainer, documents, *, weights=None):
    """The gradients of one training step on these documents, computed by the trainer's own step."""
    collate = DocumentCollator(trainer.data_collator) if trainer.padding_free else trainer.data_collator
    ones = torch.ones(len(documents))
    weights = ones if weights is None else weights
    batch = Batch(collate([trainer.documents[i] for i in documents]), torch.tensor(documents), weights, ones.double())
    trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())
    trainer.steps.take = lambda count: [batch]
    trainer.current_gradient_accumulation_steps = 1
    samples, num_items = trainer.get_batch_samples(None, 1, torch.device("cpu"))
    trainer.training_step(trainer.model, samples[0], num_items)
    return {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("weighted", [False, True])
def test_packed_and_unpacked_training_on_a_selection_have_the_same_gradients(weighted, tmp_path):
    chosen, weights = [3, 8, 9, 20, 41], torch.tensor([1.0, 2.0, 0.5, 0.0, 1.5]) if weighted else None
    unpacked, packed, cut = (
        gradients(sft(tmp_path, sb.infobatch(), **options), chosen, weights=weights)
        for options in ({}, PACKED, PACKED | {"per_device_train_batch_size": 1})
    )
    for name, gradient in unpacked.items():
        assert torch.allclose(packed[name], gradient, rtol=1e-4, atol=1e-6), name
        assert torch.allclose(cut[name], gradient, rtol=1e-4, atol=1e-6), "in several passes of at most 48 tokens"


def test_documents_that_the_ledger_skips_are_not_even_loaded(tmp_path):
    trainer = sft(tmp_path, sb.methods.ledger_percentile(0.3), **PACKED, num_train_epochs=3)
    loaded, inner = [], trainer.candidate_loader

    def watched(frame):
        loader = inner(frame)
        collate = loader.collate_fn
        loader.collate_fn = lambda rows: loaded.extend(row["row"] for row in rows) or collate(rows)
        return loader

    trainer.candidate_loader = watched
    stats = trained(trainer).selective_loader.stats
    assert len(loaded) == stats.trained == stats.offered - stats.skipped_before_loading < 0.7 * stats.offered
    assert stats.scored == 0


# ---- methods


@pytest.mark.parametrize(
    "method",
    [sb.selective_backprop(1 / 3), sb.infobatch(until=1.0)],
    ids=lambda method: method.name,
)
def test_methods(method, tmp_path):
    for options in ({}, PACKED):
        stats = trained(sft(tmp_path, method, **options)).selective_loader.stats
        assert 0 < stats.trained <= stats.offered and stats.offered == 122


@pytest.mark.parametrize("kind", PREFERENCES)
def test_pairs_are_selected(kind, tmp_path):
    for method in (sb.selective_backprop(0.5), sb.infobatch(until=1.0)):
        trainer = trained(preference(kind, tmp_path, method))
        assert trainer.selective_loader.stats.offered == 80 and trainer.selective_loader.stats.trained < 80


# ---- adapters


# ---- resume


def test_5_resumed_from_a_checkpoint(tmp_path):
    options = PACKED | {"save_strategy": "steps", "save_steps": 5, "num_train_epochs": 3, "lora": True}
    whole = trained(sft(tmp_path / "a", sb.methods.ledger_percentile(0.5), **options))
    again = sft(tmp_path / "b", sb.methods.ledger_percentile(0.5), **options)
    again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-5"))
    assert same(whole.model.state_dict(), again.model.state_dict())
    assert whole.selective_loader.stats.trained == again.selective_loader.stats.trained


# ---- bad input


def long_text():
    return datasets.Dataset.from_dict({"text": [" ".join(texts.lines("LICENSE")[:20])] * 9})


def masked():
    return datasets.Dataset.from_dict({"input_ids": [[5, 6, 7]] * 9, "labels": [[-100] * 3] * 9})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"packing": True, "packing_strategy": "wrapped"}, "use packing_strategy='bfd' or 'bfd_split', or packing=F"),
        ({"data": masked}, "training examples have no labels: .* Check completion_only_loss"),
    ],
)
def test_what_cannot_work_is_refused_at_construction(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        sft(tmp_path, sb.ledger_backprop(), **options)


@pytest.mark.parametrize("data", [long_text, lambda: long_text().to_iterable_dataset()], ids=["rows", "stream"])
def test_sequences_longer_than_the_model_are_refused(data, tmp_path):
    for method in (sb.selective_backprop(0.5), sb.traditional()):
        trainer = sft(tmp_path, method, data=data, max_length=None, max_steps=2)
        with pytest.raises(ValueError, match="max_length=64"):
            trainer.train()


def test_a_stream_has_no_ids_for_a_ledger(tmp_path):
    with pytest.raises(ValueError, match="stream"):
        sft(tmp_path, sb.ledger_backprop(), data=lambda: texts.text().to_iterable_dataset(), max_steps=2)


def test_an_empty_data_set_is_refused(tmp_path):
    with pytest.raises(ValueError, match="train_dataset has no examples"):
        sft(tmp_path, sb.ledger_backprop(), data=lambda: datasets.Dataset.from_dict({"text": []}))


def test_a_missing_extra_names_its_pip_line(monkeypatch):
    name = "selective_backprop.integrations.trl.listening"
    monkeypatch.setitem(sys.modules, "trl", None)
    monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r"pip install 'selective-backprop\[trl\]'"):
        importlib.import_module(name)


# ---- FSDP2


def test_fsdp2_of_accelerate_on_two_ranks(tmp_path):
    first, second = ranks(sharded_runs, tmp_path)
    for name, found in first.items():
        assert same(found["weights"], second[name]["weights"]), f"ranks agree on the weights of {name}"
        assert found.get("batches") == second[name].get("batches")
    assert same(first["plain"]["weights"], first["everything"]["weights"]), "selectivity 1 is TRL's FSDP2"
    assert same(first["trainer"]["weights"], first["trainer, everything"]["weights"]), "and Trainer's"
    for name, expected in (("sb", 0.5), ("packed", 0.75)):
        share = sum(r[name]["trained"] for r in (first, second)) / sum(r[name]["offered"] for r in (first, second))
        assert abs(share - expected) < 0.15, name
