"""Runs of TRL's online trainers with tiny models, shared by the tests of one rank and of two."""

import datasets
import torch
from trl import GRPOConfig, GRPOTrainer

from selective_backprop import rl
from selective_backprop.integrations.trl import SelectiveGRPOTrainer
from tests.integrations import trl_texts as texts

OPTIONS = {
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
    "gradient_checkpointing": False,
    "optim": "sgd",
    "learning_rate": 0.5,
    "logging_steps": 1,
    "save_strategy": "no",
    "per_device_train_batch_size": 16,
    "num_generations": 4,
    "max_completion_length": 4,
    "max_steps": 4,
}


def right(prompts, completions, **rest):
    """The first half of the prompts is always right, the others by chance."""
    return [1.0 if int(p.split()[-1]) < 8 else float(len(c) % 2) for p, c in zip(prompts, completions, strict=True)]


def prompts(count=16):
    return datasets.Dataset.from_dict({"prompt": [f"the License {number}" for number in range(count)]})


def make(folder, kind=SelectiveGRPOTrainer, config=GRPOConfig, *, data=None, rewards=right, settings=None, **options):
    """A trainer. settings: further arguments of the trainer itself, such as rollouts."""
    return kind(
        model=texts.make_model(),
        args=config(output_dir=str(folder), **OPTIONS | options),
        train_dataset=prompts() if data is None else data,
        reward_funcs=rewards,
        processing_class=texts.make_tokenizer(),
        **settings or {},
    )


def weights(trainer):
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


def on_two_ranks(folder):
    """Train on two ranks, by TRL's trainer and by ours. Returns the weights and the fraction that was trained on."""
    found = {}
    # Groups of 4 lie across ranks that have 6 rollouts each.
    shape = {"per_device_train_batch_size": 6, "max_steps": 6}
    for name, kind, settings in (
        ("trl", GRPOTrainer, {}),
        ("ours", SelectiveGRPOTrainer, {}),
        ("downsampled", SelectiveGRPOTrainer, {"rollouts": rl.downsample(2)}),
    ):
        trainer = make(folder / name, kind, settings=settings, **shape)
        trainer.train()
        found[name] = weights(trainer)
        found["fraction"] = [entry.get("rollouts/trained") for entry in trainer.state.log_history]
    return found
