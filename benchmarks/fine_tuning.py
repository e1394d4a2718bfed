"""Fine-tune a small language model on real text, with and without selection.

    python benchmarks/fine_tuning.py                     # everything: minutes of pre-training, then 10 seeds
    python benchmarks/fine_tuning.py --seeds 2 --no-lora
    python benchmarks/fine_tuning.py --overhead          # only the trainer's overhead at selectivity 1

The text ships with packages that are installed anyway: docstrings. The model is pre-trained on docstrings of torch and
numpy. It is then fine-tuned for 3 epochs to write the first paragraph of a docstring of scikit-learn from the
function's signature. Names that the two share are left out of the pre-training text. Equal paragraphs are split
together, so that none is in both the training and the held-out part.

Every run is a real run of TRL's SFTTrainer, or of SelectiveSFTTrainer. All learning rates decay to zero within the
budget of the run. Compute is counted in epochs of plain training, by measured costs of a forward and a training pass.
Seconds are those of training steps and selection passes. The compute multiplier is that of the lab: how many times more
compute plain training needs for the same held-out loss.
"""

import argparse
import ast
import contextlib
import hashlib
import importlib.util
import itertools
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import datasets
import peft
import torch
import transformers
import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

import selective_backprop as sb
from selective_backprop.integrations.trl import SelectiveSFTTrainer
from selective_backprop.lab.study.frontier import Arm, Frontier, compute_multiplier

PRE_TRAINING, FINE_TUNING = ("torch", "numpy"), ("sklearn",)
VOCABULARY, LENGTH, RATE = 2048, 96, 3e-3
EPOCHS = 3
PLAIN = {f"plain, {epochs:g} epochs": epochs for epochs in (1, 1.5, 2, EPOCHS)}
"""Runs of TRL's own trainer, by their number of epochs."""
SUBSETS = {f"random subsets, {share:.2f}": share for share in (1 / 3, 2 / 3)}
"""Runs on a new random subset each epoch, by its share of the data."""
METHODS = {
    "ledger_backprop(1/3)": lambda: sb.ledger_backprop(1 / 3),
    "ledger_backprop()": lambda: sb.ledger_backprop(),
    "selective_backprop(1/3)": lambda: sb.selective_backprop(1 / 3, history_size=256),
}
"""Methods by name, each trained for 3 epochs of candidates. Add a line to compare another one."""


# ---- text


def docstrings(packages):
    """The functions and classes of installed packages that have a docstring: (name, signature, docstring)."""
    for package in packages:
        found = importlib.util.find_spec(package)
        for path in sorted(Path(found.submodule_search_locations[0]).rglob("*.py")):
            with contextlib.suppress(SyntaxError, UnicodeDecodeError, RecursionError):
                for node in ast.walk(ast.parse(path.read_text())):
                    if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
                        yield node.name, signature(node), text


def signature(node):
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}:"
    return f"def {node.name}({', '.join(argument.arg for argument in node.args.args)}):"


def read_text(cache):
    """Pre-training texts and fine-tuning pairs, from the packages; read once and then kept in a file."""
    path = Path(cache) / "text.json"
    if path.exists():
        return json.loads(path.read_text())
    pairs, known = [], set()
    for name, head, text in docstrings(FINE_TUNING):
        paragraph = " ".join(text.split("\n\n")[0].split())
        if 20 <= len(paragraph) <= 160 and (head, paragraph) not in known:
            known.add((head, paragraph))
            pairs.append([name, head, paragraph])
    names = {name for name, *_ in pairs}
    texts = [text for name, _, text in docstrings(PRE_TRAINING) if name not in names and len(text) > 80]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"pairs": pairs, "texts": texts}))
    return {"pairs": pairs, "texts": texts}


def split(pairs, num_train, num_test):
    """Training and held-out pairs. Pairs with the same paragraph go to the same side."""
    held_out = [pair for pair in pairs if hashlib.sha256(pair[2].encode()).digest()[0] < 64]
    rest = [pair for pair in pairs if hashlib.sha256(pair[2].encode()).digest()[0] >= 64]
    chance = random.Random(0)
    chance.shuffle(held_out)
    chance.shuffle(rest)
    return as_dataset(rest[:num_train]), as_dataset(held_out[:num_test])


def as_dataset(pairs):
    columns = {"prompt": [f"{head}\n" for _, head, _ in pairs], "completion": [text for *_, text in pairs]}
    return datasets.Dataset.from_dict(columns)


def make_tokenizer(texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<pad>", "<eos>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


# ---- the model


def new_model():
    set_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=256,
            tie_word_embeddings=True,
        )
    )


def pre_train(cache, texts, steps):
    """The folder of the model and its tokenizer, pre-trained once and then kept."""
    folder = Path(cache) / f"model-{steps}"
    if folder.exists():
        return folder
    tokenizer, model = make_tokenizer(texts), new_model()
    tokens = torch.tensor(list(itertools.chain.from_iterable(tokenizer(texts)["input_ids"])))
    rows = tokens[: len(tokens) // LENGTH * LENGTH].view(-1, LENGTH)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.1)
    generator, began, losses = torch.Generator().manual_seed(0), time.perf_counter(), []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / 50, 1.25 * (1 - step / steps))
        batch = rows[torch.randint(len(rows), (16,), generator=generator)]
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    size = sum(parameter.numel() for parameter in model.parameters())
    about = (
        f"{size / 1e6:.2f} million parameters, pre-trained on {len(tokens):,} tokens for {steps} steps of 16 x "
        f"{LENGTH} tokens in {(time.perf_counter() - began) / 60:.0f} minutes, to a loss of "
        f"{statistics.fmean(losses[-50:]):.2f}"
    )
    tokenizer.save_pretrained(folder)
    (folder / "about.txt").write_text(about)
    model.save_pretrained(folder)
    return folder


# ---- runs


def arguments(folder, *, epochs, seed, lora, **options):
    defaults = {
        "output_dir": folder,
        "num_train_epochs": epochs,
        "per_device_train_batch_size": 16,
        "per_device_eval_batch_size": 64,
        "learning_rate": 4e-3 if lora else 1e-3,
        "lr_scheduler_type": "linear",
        "warmup_steps": 5,
        "max_length": LENGTH,
        "seed": seed,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
    }
    return trl.SFTConfig(**defaults | options)


def make_trainer(model_folder, train, method=None, *, epochs=EPOCHS, seed=0, lora=False, eval_dataset=None, **options):
    """TRL's own trainer, or with a method the one that selects."""
    settings = {"peft_config": peft.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear")} if lora else {}
    settings |= {} if method is None else {"method": method}
    kind = trl.SFTTrainer if method is None else SelectiveSFTTrainer
    with tempfile.TemporaryDirectory() as folder:
        return kind(
            model=str(model_folder),
            args=arguments(folder, epochs=epochs, seed=seed, lora=lora, **options),
            train_dataset=train,
            eval_dataset=eval_dataset,
            **settings,
        )


class StepTimer(transformers.TrainerCallback):
    """Measures training, from the first step's beginning to the last one's end: seconds, and those of the processor."""

    def on_train_begin(self, *args, **rest):
        self.began = time.perf_counter(), time.process_time()

    def on_step_end(self, *args, **rest):
        self.seconds = time.perf_counter() - self.began[0]
        self.processor_seconds = time.process_time() - self.began[1]


def train(trainer):
    """Train; return the held-out loss and what the run cost in seconds, tokens trained on and candidates scored."""
    timer = StepTimer()
    trainer.add_callback(timer)
    trainer.train()
    stats = trainer.selective_loader.stats if isinstance(trainer, SelectiveSFTTrainer) else None
    count = len(trainer.train_dataset)
    return {
        "loss": trainer.evaluate()["eval_loss"],
        "seconds": timer.seconds,
        "trained": stats.trained / count if stats else trainer.args.num_train_epochs,
        "scored": stats.scored / count if stats else 0.0,
    }


def compute(run, backward):
    """Epochs of plain training that a run's passes amount to, if a backward pass costs `backward` forward passes."""
    return run["trained"] + run["scored"] / (1 + backward)


# ---- costs and overhead


def measure_backward(model_folder, train_data, *, lora, checkpointing=False, rounds=7):
    """How many forward passes a backward pass costs: measured by `advise`'s own costs, on batches of the run."""
    options = {"lora": lora, "gradient_checkpointing": checkpointing}
    trainer = make_trainer(model_folder, train_data, sb.ledger_backprop(), **options)
    return trainer.advise(seconds=rounds, scoring=()).costs.backward


def overhead(model_folder, train_data, *, rounds=9, packing=False):
    """Processor seconds of an epoch with selectivity 1 against TRL's own, in turns, and whether weights are equal.

    Other work on the machine does not count in processor seconds.
    """
    options = {"packing": packing, "epochs": 1}
    if packing:
        options["per_device_train_batch_size"] = 4
    ratios, equal = [], True
    for number in range(rounds):
        seconds, weights = {}, {}
        kinds = [None, sb.ledger_backprop(1.0)]
        for method in kinds if number % 2 else kinds[::-1]:
            trainer, timer = make_trainer(model_folder, train_data, method, **options), StepTimer()
            trainer.add_callback(timer)
            trainer.train()
            seconds[method is None], weights[method is None] = timer.processor_seconds, trainer.model.state_dict()
        ratios.append(seconds[False] / seconds[True])
        equal &= all(torch.equal(weights[True][name], weights[False][name]) for name in weights[True])
    return statistics.median(ratios), equal


# ---- the report


class Records:
    """Finished runs, kept in a file: a run that was interrupted goes on, and a new method is run alone."""

    def __init__(self, path):
        self.path = Path(path)
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        self.runs = {entry.pop("key"): entry for entry in map(json.loads, lines)}

    def get(self, key, make):
        if key not in self.runs:
            self.runs[key] = make()
            with self.path.open("a") as file:
                file.write(json.dumps({"key": key, **self.runs[key]}) + "\n")
        return self.runs[key]


def run_all(records, model_folder, train_data, test_data, *, lora, seeds):
    """All runs by name: plain training at several budgets, random subsets and all methods. Seeds are the outer loop,
    so that runs to be compared are made at about the same time."""
    arms = {name: (None, epochs) for name, epochs in PLAIN.items()}
    arms |= {name: (lambda share=share: sb.random_backprop(share), EPOCHS) for name, share in SUBSETS.items()}
    arms |= {name: (method, EPOCHS) for name, method in METHODS.items()}
    runs = {name: [] for name in arms}
    for seed in range(seeds):
        for name, (method, epochs) in arms.items():

            def make(method=method, epochs=epochs, seed=seed):
                options = {"epochs": epochs, "seed": seed, "lora": lora, "eval_dataset": test_data}
                return train(make_trainer(model_folder, train_data, method and method(), **options))

            key = f"{name}, seed {seed}{', LoRA' if lora else ''}, {model_folder.name}, {len(train_data)} pairs"
            runs[name].append(records.get(key, make))
    return runs


def report(runs, *, backward):
    """Print the table of runs and their multipliers, and whether the goal is met."""

    def by(cost, names):
        return {name: Arm(tuple(run["loss"] for run in runs[name]), tuple(map(cost, runs[name]))) for name in names}

    def passes(run):
        return compute(run, backward)

    def seconds(run):
        return run["seconds"]

    plain = Frontier(list(by(passes, PLAIN).values()))
    plain_seconds = Frontier(list(by(seconds, PLAIN).values()))
    subsets = Frontier(list(by(passes, SUBSETS).values()))
    print("| | held-out loss | compute | seconds | multiplier against plain | in seconds | against random subsets |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    best = 0.0
    for name in runs:
        [by_passes], [by_seconds] = by(passes, [name]).values(), by(seconds, [name]).values()
        cells = [f"{by_passes.error:.4f}", f"{by_passes.cost:.2f}", f"{by_seconds.cost:.1f}"]
        if name in METHODS:
            found = compute_multiplier(plain, by_passes)
            best = max(best, found.multiple.value)
            others = (plain_seconds, by_seconds), (subsets, by_passes)
            cells += [interval.short() for interval in (found, *(compute_multiplier(*pair) for pair in others))]
        print(f"| {name} | {' | '.join([*cells, *[''] * (6 - len(cells))])} |")
    print(f"\nGoal: a compute multiplier of 1.5 against plain training. Best: {best:.2f}. ", end="")
    print("Met." if best >= 1.5 else "Missed.")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", default=str(Path(tempfile.gettempdir()) / "selective-backprop-fine-tuning"))
    parser.add_argument("--steps", type=int, default=400, help="of pre-training")
    parser.add_argument("--examples", type=int, default=160, help="to fine-tune on")
    parser.add_argument("--held-out", type=int, default=120)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=9, help="of the overhead")
    parser.add_argument("--lora", action=argparse.BooleanOptionalAction, default=None, help="only with, only without")
    parser.add_argument("--overhead", action="store_true", help="only the overhead")
    options = parser.parse_args(argv)

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    torch.set_num_threads(1)
    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, trl {trl.__version__}, "
        f"transformers {transformers.__version__}, peft {peft.__version__}, {torch.get_num_threads()} thread"
    )
    print(f"command: python benchmarks/fine_tuning.py {' '.join(argv if argv is not None else sys.argv[1:])}")
    text = read_text(options.cache)
    model_folder = pre_train(options.cache, text["texts"], options.steps)
    print((model_folder / "about.txt").read_text())
    train_data, test_data = split(text["pairs"], options.examples, options.held_out)
    print(f"{len(train_data)} pairs to fine-tune on, {len(test_data)} held out\n")

    for packing in (False, True):
        ratio, equal = overhead(model_folder, train_data, rounds=options.rounds, packing=packing)
        print(
            f"overhead at selectivity 1, {'packed' if packing else 'padded'}: {100 * (ratio - 1):+.1f}% (goal: at most "
            f"2%), weights equal to the bit: {equal}",
            flush=True,
        )
    if options.overhead:
        return
    records = Records(Path(options.cache) / "runs.jsonl")
    for lora in (False, True) if options.lora is None else (options.lora,):
        backward, again = (
            measure_backward(model_folder, train_data, lora=lora, checkpointing=checkpointing)
            for checkpointing in (False, True)
        )
        print(
            f"\n## {'LoRA' if lora else 'All weights'}, {options.seeds} seeds\n\nA backward pass costs {backward:.2f} "
            f"forward passes, with gradient checkpointing {again:.2f}.\n",
            flush=True,
        )
        runs = run_all(records, model_folder, train_data, test_data, lora=lora, seeds=options.seeds)
        report(runs, backward=backward)


if __name__ == "__main__":
    main()
