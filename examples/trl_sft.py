"""Fine-tune a small language model with TRL, LoRA, packing and Selective-Backprop. Nothing is downloaded.

pip install 'selective-backprop[trl]'
python examples/trl_sft.py
"""

import argparse
import inspect
import tempfile

try:
    from datasets import Dataset
    from peft import LoraConfig
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
    from trl import SFTConfig
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install 'selective-backprop[trl]'") from None

import torch

import selective_backprop as sb
from selective_backprop.integrations.trl import SelectiveSFTTrainer


def documented() -> Dataset:
    """Prompts and completions: the names of torch's functions, and the first lines of their docstrings."""
    pairs = {}
    for module in (torch, torch.nn, torch.nn.functional, torch.Tensor):
        for name, value in inspect.getmembers(module):
            lines = [line.strip() for line in (inspect.getdoc(value) or "").splitlines() if len(line.strip()) > 20]
            if callable(value) and not name.startswith("_") and lines:
                pairs[f"What does {name} do? "] = lines[0][:120]
    return Dataset.from_dict({"prompt": list(pairs), "completion": list(pairs.values())})


def make_tokenizer(data: Dataset) -> PreTrainedTokenizerFast:
    """A tokenizer trained on the data."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=1000, special_tokens=["<unk>", "<pad>", "<eos>"], show_progress=False)
    tokenizer.train_from_iterator([*data["prompt"], *data["completion"]], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>")


def main() -> None:
    """Train, and print how it went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--examples", type=int, default=600)
    options = parser.parse_args()

    data = documented().shuffle(seed=0)
    data = data.select(range(min(options.examples, len(data)))).train_test_split(0.1, seed=0)
    set_seed(0)
    config = LlamaConfig(
        vocab_size=1000, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = SelectiveSFTTrainer(  # instead of SFTTrainer
            method=sb.methods.ledger_percentile(1 / 3),  # new
            model=LlamaForCausalLM(config),  # in earnest: the name of a model on the hub
            args=SFTConfig(
                output_dir=folder,
                num_train_epochs=options.epochs,
                per_device_train_batch_size=4,
                learning_rate=1e-2,
                max_length=128,
                packing=True,
                save_strategy="no",
                report_to=[],
                use_cpu=not torch.cuda.is_available(),
                bf16=False,
                disable_tqdm=True,
            ),
            train_dataset=data["train"],
            eval_dataset=data["test"],
            processing_class=make_tokenizer(data["train"]),
            peft_config=LoraConfig(r=8, target_modules="all-linear"),
        )
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        print(trainer.selective_loader.stats)
        print(f"held-out loss {before:.3f} before, {trainer.evaluate()['eval_loss']:.3f} after")


if __name__ == "__main__":
    main()
