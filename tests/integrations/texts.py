"""Real text: lines of this repository's own files, as characters; tiny models for them."""

from pathlib import Path

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

ROOT = Path(__file__).parent.parent.parent
PAD = 0


def encode(line):
    return [min(ord(letter), 127) for letter in line[:40]]


def lines(name):
    return [line.strip() for line in (ROOT / name).read_text().splitlines() if len(line.strip()) > 8]


def classification(count=203):
    """Is a line prose or Python?"""
    prose, code = lines("LICENSE"), lines("src/selective_backprop/loader.py")
    pairs = [pair for both in zip(prose, code, strict=False) for pair in ((both[0], 0), (both[1], 1))]
    assert len(pairs) >= count
    return [{"input_ids": encode(line), "labels": label} for line, label in pairs[:count]]


def language(count=203):
    return [{"input_ids": encode(line)} for line in lines("LICENSE")[:count]]


def collate(examples):
    """Pads to the longest of the batch, as Hugging Face's collators do."""
    length = max(len(example["input_ids"]) for example in examples)
    ids = torch.full((len(examples), length), PAD)
    for row, example in zip(ids, examples, strict=True):
        row[: len(example["input_ids"])] = torch.tensor(example["input_ids"])
    mask = (ids != PAD).long()
    if "labels" in examples[0]:
        labels = torch.tensor([example["labels"] for example in examples])
    else:
        labels = ids.masked_fill(mask == 0, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def collate_noisily(examples):
    """With augmentation that draws from torch's global generator."""
    batch = collate(examples)
    noise = torch.rand(batch["input_ids"].shape) < 0.1
    return batch | {"input_ids": batch["input_ids"].masked_fill(noise & (batch["attention_mask"] == 1), 1)}


def classifier(seed=0):
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=128,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    return BertForSequenceClassification(config)


def language_model(seed=0):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        attention_dropout=0.1,
        pad_token_id=PAD,
        bos_token_id=1,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config)


def gpt2(seed=0):
    torch.manual_seed(seed)
    config = GPT2Config(vocab_size=128, n_embd=16, n_layer=1, n_head=2, n_positions=64, bos_token_id=1, eos_token_id=1)
    return GPT2LMHeadModel(config)
