"""Runs of TRL's online trainers with tiny models, shared by the tests of one rank and of two."""

import os
import signal

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
    "learning_rate": 0.05,
    "logging_steps": 1,
    "save_strategy": "no",
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_completion_length": 4,
    "max_steps": 4,
}


def right(prompts, completions, **rest):
    """The first half of the prompts is always right, the others by chance."""
    return [1.0 if int(p.split()[-1]) < 8 else float(len(c) % 2) for p, c in zip(prompts, completions, strict=True)]


def short(completions, **rest):
    """A reward for form. It knows nothing of the answer."""
    return [-0.1 * len(completion) for completion in completions]


def prompts(count=16):
    return datasets.Dataset.from_dict({"prompt": [f"the License {number}" for number in range(count)]})


def make(folder, kind=SelectiveGRPOTrainer, config=GRPOConfig, *, data=None, rewards=right, settings=None, **options):
    """A trainer. settings: further arguments of the trainer itself, such as method."""
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


KILLED = {"max_steps": 12, "save_strategy": "steps", "save_steps": 3}


def killed(folder):
    """Train until the process is killed, in the middle of its eighth generation."""
    calls = []

    def right_or_killed(prompts, completions, **rest):
        calls.append(1)
        if len(calls) == 8:
            os.kill(os.getpid(), signal.SIGKILL)
        return right(prompts, completions)

    make(
        folder, rewards=right_or_killed, settings={"method": rl.greso(), "rollouts": rl.drop_equal()}, **KILLED
    ).train()


def on_two_ranks(folder):
    """Train on two ranks, by TRL's trainer and by ours, and in one go and resumed. Returns what this rank found."""
    both = {"method": rl.greso(), "rollouts": rl.downsample(2, refill=1)}
    found = {}
    # Groups of 4 lie across ranks that have 6 rollouts each.
    shape = {"per_device_train_batch_size": 6, "max_steps": 4}
    for name, kind, settings in (
        ("trl", GRPOTrainer, {}),
        ("plain", SelectiveGRPOTrainer, {}),
        ("both", SelectiveGRPOTrainer, both),
    ):
        options = shape | ({"save_strategy": "steps", "save_steps": 2} if name == "both" else {})
        trainer = make(folder / name, kind, settings=settings, **options)
        trainer.train()
        found[name] = weights(trainer)
    found["ledger"], found["rollouts"] = trainer.prompt_sampler.sampler.ledger.prompt, trainer.rollout_stats.rollouts
    resumed = make(folder / "both", settings=both, **shape)
    resumed.train(resume_from_checkpoint=str(folder / "both" / "checkpoint-2"))
    found["resumed"] = weights(resumed)
    return found
