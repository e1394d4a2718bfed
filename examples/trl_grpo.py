"""Teach a tiny language model to add by GRPO in TRL, without groups of equal rewards. Nothing is downloaded.

pip install 'selective-backprop[trl]'
python examples/trl_grpo.py
"""

import argparse
import random
import tempfile

try:
    from datasets import Dataset
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
    from trl import GRPOConfig
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install 'selective-backprop[trl]'") from None

import torch
import torch.nn.functional as F

from selective_backprop import rl
from selective_backprop.integrations.trl import SelectiveGRPOTrainer

CHARACTERS = ["<pad>", "<eos>", *"0123456789+="]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer that knows digits, plus and equals."""
    tokenizer = Tokenizer(models.WordLevel({char: number for number, char in enumerate(CHARACTERS)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def sums(count: int, seed: int) -> list[tuple[str, str]]:
    """Sums of two numbers with one or two digits, and their answers."""
    draw = random.Random(seed)
    pairs = [
        (draw.randrange(10 ** draw.choice((1, 2))), draw.randrange(10 ** draw.choice((1, 2)))) for _ in range(count)
    ]
    return [(f"{a}+{b}=", str(a + b)) for a, b in pairs]


def pretrain(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int) -> None:
    """Learn from examples, as far as to be right sometimes."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        rows = [prompt + answer + "<eos>" for prompt, answer in sums(64, seed=step)]
        batch = tokenizer(rows, return_tensors="pt", padding=True)
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)[:, 1:]
        logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
        F.cross_entropy(logits.transpose(1, 2), labels).backward()
        optimizer.step()
        optimizer.zero_grad()


def accuracy(completions: list[str], answer: list[str], **rest: object) -> list[float]:
    """The reward: 1 if the sum is right, else 0."""
    return [float(found == right) for found, right in zip(completions, answer, strict=True)]


def main() -> None:
    """Train, and print what was skipped and what it saved."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pretraining", type=int, default=500)
    options = parser.parse_args()

    torch.set_num_threads(1)  # the model is so small that threads would only wait for each other
    set_seed(0)
    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=len(CHARACTERS),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        pad_token_id=0,
        eos_token_id=1,
    )
    model = LlamaForCausalLM(config)
    pretrain(model, tokenizer, options.pretraining)
    prompts, answers = zip(*sums(128, seed=-1), strict=True)
    with tempfile.TemporaryDirectory() as folder:
        trainer = SelectiveGRPOTrainer(  # instead of GRPOTrainer
            model=model,
            rollouts=rl.drop_equal(),  # which rollouts to train on; the default
            args=GRPOConfig(
                output_dir=folder,
                max_steps=options.steps,
                per_device_train_batch_size=64,
                num_generations=8,
                max_completion_length=4,
                learning_rate=3e-4,
                logging_steps=10,
                report_to=[],
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                disable_tqdm=True,
                save_strategy="no",
            ),
            reward_funcs=accuracy,
            train_dataset=Dataset.from_dict({"prompt": prompts, "answer": answers}),
            processing_class=tokenizer,
        )
        trainer.train()

    history = trainer.state.log_history
    rewards, equal, fractions = (
        [entry[name] for entry in history if name in entry]
        for name in ("reward", "frac_reward_zero_std", "rollouts/trained")
    )
    print(f"accuracy of the rollouts: {rewards[0]:.2f} at first, {rewards[-1]:.2f} at the end")
    print(f"groups with equal rewards, from which nothing is learned: {sum(equal) / len(equal):.0%}")
    print(f"rollouts that were backpropagated: {sum(fractions) / len(fractions):.0%}")


if __name__ == "__main__":
    main()
