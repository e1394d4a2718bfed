"""Fine-tune a small language model on real text, with and without selection.

    python benchmarks/fine_tuning.py                     # everything: pre-training, rates, then 10 seeds
    python benchmarks/fine_tuning.py --seeds 2 --no-lora
    python benchmarks/fine_tuning.py --overhead          # only the trainer's overhead at selectivity 1

The text ships with packages that are installed anyway: docstrings. The model is pre-trained on docstrings of torch and
numpy. It is then fine-tuned for 3 epochs to write the first paragraph of a docstring of scikit-learn from the
function's signature. Names that the two share are left out of the pre-training text. Pairs are split by a hash of their
paragraph, so that none is in two parts: training, choosing of rates, evaluation.

Protocol:

1. Every arm chooses its learning rate from the same three, RATES, by the loss on the pairs kept for that, with one seed
   that is used for nothing else. Plain training chooses one for each number of epochs, and so does every subset. With
   LoRA the rates were 0.0025, 0.005 and 0.01 at first. Every arm chose the largest, so that run was stopped, and the
   rates were moved up.
2. With these rates every arm is run with 10 other seeds. The loss on the evaluation pairs is read once, after each run.
   Seeds are the outer loop. Every run has the same pre-trained weights; the seed decides the order and the selection.
3. Every run is a real run of TRL's SFTTrainer, or of SelectiveSFTTrainer. All learning rates decay to zero within the
   budget of the run.
4. Compute counts tokens, padding included, in units of one epoch of plain training. A backward pass counts as two
   forward passes, with LoRA as one. So a selection pass over a token costs 1/3 of training on it, with LoRA 1/2.
   Seconds are those of the processor, in training and selection, because other work shares the machine.
5. The compute multiplier is that of the lab: how many times more compute plain training needs for the same loss on the
   evaluation pairs, with a bootstrap interval over the seeds of both. Random subsets are a second frontier; trained on
   all of the data they are plain training for 3 epochs.

The goal is a multiplier of 1.5 against plain training, and an overhead of at most 2% at selectivity 1.
"""

import argparse
import ast
import contextlib
import functools
import gc
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
import threading
import time
from concurrent.futures import ThreadPoolExecutor
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
from selective_backprop_lab.study.frontier import Budget, Frontier, compute_multiplier

PRE_TRAINING, FINE_TUNING = ("torch", "numpy"), ("sklearn",)
VOCABULARY, LENGTH, RATE = 1024, 96, 3e-3
LONGEST_HEAD, LONGEST_PARAGRAPH = 40, 60  # characters; shorter pairs make more runs affordable
EPOCHS = 3
RATES = {False: (1e-3, 2e-3, 4e-3), True: (1e-2, 2e-2, 4e-2)}
"""Learning rates to choose from, without and with LoRA."""
TUNING_SEED = 1000
PLAIN = {f"plain, {epochs:g} epochs": epochs for epochs in (1, 1.5, 2, EPOCHS)}
"""Runs of TRL's own trainer, by their number of epochs."""
SUBSETS = {f"random subsets, {name}": share for name, share in {"1/3": 1 / 3, "2/3": 2 / 3}.items()}
"""Runs on a new random subset each epoch, by its share of the data."""
METHODS = {
    "ledger_percentile(1/3)": lambda: sb.methods.ledger_percentile(1 / 3),
    "ledger_percentile(1/2)": lambda: sb.methods.ledger_percentile(1 / 2),
    "ledger_backprop(), no rules": lambda: sb.ledger_backprop(skip_at_least=0, most_rise=None),
    "tail_sft(0.75)": lambda: sb.methods.tail_sft(0.75),
    "selective_backprop(1/3)": lambda: sb.selective_backprop(1 / 3, history_size=256),
}
"""Methods by name. Each has 3 epochs of candidates. Add a line for another one."""


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
    """Pairs for training, for choosing rates and for evaluation. Pairs with the same paragraph go to the same part."""
    parts = {"train": [], "choose": [], "test": []}
    for pair in pairs:
        if len(pair[1]) <= LONGEST_HEAD and len(pair[2]) <= LONGEST_PARAGRAPH:
            number = hashlib.sha256(pair[2].encode()).digest()[0]
            parts["test" if number < 64 else "choose" if number < 112 else "train"].append(pair)
    chance = random.Random(0)
    for part in parts.values():
        chance.shuffle(part)
    counts = {"train": num_train, "choose": num_test, "test": num_test}
    return {name: as_dataset(part[: counts[name]]) for name, part in parts.items()}


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
            intermediate_size=400,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=256,
            tie_word_embeddings=True,
        )
    )


def pre_train(cache, texts, steps):
    """The folder of the model and its tokenizer, pre-trained once and then kept."""
    folder = Path(cache) / f"model-{VOCABULARY}-{steps}"
    if folder.exists():
        return folder
    tokenizer, model = make_tokenizer(texts), new_model()
    tokens = torch.tensor(list(itertools.chain.from_iterable(tokenizer(texts)["input_ids"])))
    rows = tokens[: len(tokens) // LENGTH * LENGTH].view(-1, LENGTH)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.1)
    generator, began, losses = torch.Generator().manual_seed(0), time.process_time(), []
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
        f"{LENGTH} tokens in {(time.process_time() - began) / 60:.0f} minutes of the processor, to a loss of "
        f"{statistics.fmean(losses[-50:]):.2f}"
    )
    tokenizer.save_pretrained(folder)
    (folder / "about.txt").write_text(about)
    model.save_pretrained(folder)
    return folder


# ---- runs


def arguments(folder, *, epochs, seed, lora, rate, **options):
    defaults = {
        "output_dir": folder,
        "num_train_epochs": epochs,
        "per_device_train_batch_size": 16,
        "per_device_eval_batch_size": 64,
        "learning_rate": rate or RATES[lora][1],
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


def make_trainer(
    model_folder, data, method=None, *, epochs=EPOCHS, seed=0, lora=False, rate=None, eval_dataset=None, **options
):
    """TRL's own trainer, or with a method the one that selects."""
    settings = {"peft_config": peft.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear")} if lora else {}
    settings |= {} if method is None else {"method": method}
    kind = trl.SFTTrainer if method is None else SelectiveSFTTrainer
    with tempfile.TemporaryDirectory() as folder:
        return kind(
            model=str(model_folder),
            args=arguments(folder, epochs=epochs, seed=seed, lora=lora, rate=rate, **options),
            train_dataset=data,
            eval_dataset=eval_dataset,
            **settings,
        )


class StepTimer(transformers.TrainerCallback):
    """Measures training in processor seconds, from the first step's beginning to the last one's end."""

    def on_train_begin(self, *args, **rest):
        self.began = time.process_time()

    def on_step_end(self, *args, **rest):
        self.seconds = time.process_time() - self.began


def train(trainer):
    """Train; return the held-out loss and the run's cost: seconds, tokens trained on and tokens that were only scored.

    Tokens are those that the model gets, padding included.
    """
    timer, tokens = StepTimer(), {"trained": 0, "scored": 0}

    def count(module, args, inputs):
        tokens["trained" if torch.is_grad_enabled() else "scored"] += inputs["input_ids"].numel()

    trainer.add_callback(timer)
    with trainer.model.register_forward_pre_hook(count, with_kwargs=True):
        trainer.train()
    return {"loss": trainer.evaluate()["eval_loss"], "seconds": timer.seconds, **tokens}


def tokenized(model_folder, data):
    """The data as TRL's trainer prepares it, with completion-only labels, so that runs need not do it again."""
    options = {"eval_dataset": {name: part for name, part in data.items() if name != "train"}}
    trainer = make_trainer(model_folder, data["train"], **options)
    return {"train": trainer.train_dataset, **trainer.eval_dataset}


# ---- overhead


class Baton(transformers.TrainerCallback):
    """Makes two trainers take turns, step by step, and measures the processor seconds of each step.

    So both meet the same load of the machine, and work on the same batch one right after the other. The model's passes
    and the optimizer's step compute the same in both, to the bit, so the code that differs is in the rest of the step.
    That is measured apart, too, because the load changes the time of the passes by more than that.
    """

    def __init__(self, trainer, mine, other):
        self.mine, self.other = mine, other
        self.steps, self.rests, self._same = [], [], 0.0
        trainer.model.forward = self._timed(trainer.model.forward)
        trainer.accelerator.backward = self._timed(trainer.accelerator.backward)
        trainer.add_callback(self)

    def _timed(self, function):
        @functools.wraps(function)
        def timed(*args, **options):
            began = time.thread_time()
            try:
                return function(*args, **options)
            finally:
                self._same += time.thread_time() - began

        return timed

    def _take_turn(self):
        self.mine.acquire()
        self._began, self._same = time.thread_time(), 0.0

    def on_train_begin(self, *args, **rest):
        self._take_turn()

    def on_pre_optimizer_step(self, *args, **rest):
        self._same -= time.thread_time()

    def on_optimizer_step(self, *args, **rest):
        self._same += time.thread_time()

    def on_step_end(self, *args, **rest):
        self.steps.append(time.thread_time() - self._began)
        self.rests.append(self.steps[-1] - self._same)
        self.other.release()
        self._take_turn()

    def on_train_end(self, *args, **rest):
        self.other.release()


def step_by_step(first, second):
    """Train two trainers in turns. Returns their batons, with the seconds of all steps."""
    turns = [threading.Semaphore(1), threading.Semaphore(0)]
    batons = [Baton(first, *turns), Baton(second, *turns[::-1])]
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(trainer.train) for trainer in (first, second)]:
            future.result()
    return batons


def overhead(model_folder, data, *, rounds, packing=False):
    """What a step with selectivity 1 takes more than TRL's own, and whether weights are equal.

    Returns the median over steps of two ratios: of whole steps, and of what is outside the passes and the optimizer,
    added to TRL's own whole step. The two trainers take turns in who goes first.
    """
    options = {"packing": packing, "epochs": 1}
    if packing:
        options["per_device_train_batch_size"] = 4
    whole, rests, equal = [], [], True
    for number in range(rounds):
        own, selective = (
            make_trainer(model_folder, data, method, **options) for method in (None, sb.methods.ledger_percentile(1.0))
        )
        ours, theirs = step_by_step(selective, own) if number % 2 else step_by_step(own, selective)[::-1]
        for our_step, their_step, our_rest, their_rest in zip(
            ours.steps, theirs.steps, ours.rests, theirs.rests, strict=True
        ):
            whole.append(our_step / their_step - 1)
            rests.append((our_rest - their_rest) / their_step)
        weights = own.model.state_dict(), selective.model.state_dict()
        equal &= all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    return statistics.median(whole), statistics.median(rests), equal


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


def arms():
    """The arms by name: the function that makes the method, None for plain training, and the number of epochs."""
    found = {name: (None, epochs) for name, epochs in PLAIN.items()}
    found |= {name: (lambda share=share: sb.repeated_random(share), EPOCHS) for name, share in SUBSETS.items()}
    return found | {name: (method, EPOCHS) for name, method in METHODS.items()}


def run_all(records, model_folder, data, *, lora, seeds):
    """Choose each arm's rate, then run all arms with all seeds: {name: rate}, {name: runs}. Seeds are the outer loop,
    so that runs to be compared are made at about the same time."""
    about = f"{', LoRA' if lora else ''}, {model_folder.name}, {len(data['train'])} pairs"

    def run(name, seed, rate, evaluate_on):
        method, epochs = arms()[name]

        def make():
            options = {"epochs": epochs, "seed": seed, "lora": lora, "rate": rate, "eval_dataset": data[evaluate_on]}
            options["dataset_kwargs"] = {"skip_prepare_dataset": True}
            return train(make_trainer(model_folder, data["train"], method and method(), **options))

        return records.get(f"{name}, seed {seed}, rate {rate:g}{about}", make)

    rates = {}
    for name in arms():
        losses = {rate: run(name, TUNING_SEED, rate, "choose")["loss"] for rate in RATES[lora]}
        rates[name] = min(losses, key=losses.get)
    runs = {name: [] for name in arms()}
    for seed in range(seeds):
        for name in runs:
            runs[name].append(run(name, seed, rates[name], "test"))
    return rates, runs


def report(rates, runs, *, lora):
    """Print the table of runs and their multipliers, and whether the goal is met."""
    epoch = statistics.fmean(run["trained"] for run in runs["plain, 1 epochs"])
    forward = 1 / (2 if lora else 3)  # of the cost of training on a token

    def compute(run):
        return (run["trained"] + forward * run["scored"]) / epoch

    def seconds(run):
        return run["seconds"]

    def arm(name, cost):
        return Budget(tuple(run["loss"] for run in runs[name]), tuple(map(cost, runs[name])))

    plain = list(PLAIN)
    frontiers = [
        (Frontier([arm(name, cost) for name in names]).budgets, cost)
        for names in (plain, [*SUBSETS, plain[-1]])
        for cost in (compute, seconds)
    ]
    print("| | rate | held-out loss | compute | seconds | M, plain | in seconds | M, random subsets | in seconds |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    best = {}
    for name in runs:
        by_compute = arm(name, compute)
        cells = [f"{rates[name]:g}", f"{by_compute.error:.4f}", f"{by_compute.cost:.2f}"]
        cells.append(f"{arm(name, seconds).cost:.1f}")
        if name in METHODS:
            found = [compute_multiplier(frontier, [arm(name, cost)]) for frontier, cost in frontiers]
            best[name] = found[0].multiple.value
            cells += [interval.short() for interval in found]
        print(f"| {name} | {' | '.join([*cells, *[''] * (8 - len(cells))])} |")
    name = max(best, key=best.get)
    verdict = "Met." if best[name] >= 1.5 else "Missed."
    print(f"\nGoal: a compute multiplier M of 1.5 against plain training. Best: {best[name]:.2f}, {name}. {verdict}")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", default=str(Path(tempfile.gettempdir()) / "selective-backprop-fine-tuning"))
    parser.add_argument("--steps", type=int, default=1200, help="of pre-training")
    parser.add_argument("--examples", type=int, default=320, help="to fine-tune on")
    parser.add_argument("--held-out", type=int, default=160, help="to evaluate on; as many to choose rates")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=9, help="of the overhead; 0 leaves it out")
    parser.add_argument("--lora", action=argparse.BooleanOptionalAction, default=None, help="only with, only without")
    parser.add_argument("--overhead", action="store_true", help="only the overhead")
    options = parser.parse_args(argv)

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    torch.set_num_threads(1)
    gc.freeze()  # accelerate collects garbage after every run, and would look at all that was imported: 0.3 s
    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, trl {trl.__version__}, "
        f"transformers {transformers.__version__}, peft {peft.__version__}, {torch.get_num_threads()} thread"
    )
    print(f"command: python benchmarks/fine_tuning.py {' '.join(argv if argv is not None else sys.argv[1:])}")
    text = read_text(options.cache)
    model_folder = pre_train(options.cache, text["texts"], options.steps)
    print((model_folder / "about.txt").read_text())
    data = split(text["pairs"], options.examples, options.held_out)
    print(", ".join(f"{len(part)} pairs to {name}" for name, part in data.items()), end="\n\n", flush=True)

    for packing in (False, True) if options.rounds else ():
        whole, rest, equal = overhead(model_folder, data["choose"], rounds=options.rounds, packing=packing)
        print(
            f"overhead at selectivity 1, {'packed' if packing else 'padded'}: {100 * whole:+.1f}% of whole steps (goal "
            f"at most 2%), {100 * rest:+.1f}% outside the passes and the optimizer, weights equal to the bit: {equal}",
            flush=True,
        )
    if options.overhead:
        return
    records, data = Records(Path(options.cache) / "runs.jsonl"), tokenized(model_folder, data)
    for lora in (False, True) if options.lora is None else (options.lora,):
        print(f"\n## {'LoRA' if lora else 'All weights'}, {options.seeds} seeds\n", flush=True)
        report(*run_all(records, model_folder, data, lora=lora, seeds=options.seeds), lora=lora)


if __name__ == "__main__":
    main()
