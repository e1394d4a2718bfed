"""Which prompts to generate from: GRPO on arithmetic by each rule, by generated tokens, with seeds and intervals.

A transformer of half a million parameters learns sums of 1 to 3 digits from the answers of somebody who often forgets
to carry, and then by GRPO with the right answer as the only reward. benchmarks/results/rl/PROTOCOL.md says what is
compared and how it is decided.

    python benchmarks/rl.py tune --folder benchmarks/results/rl
    python benchmarks/rl.py run --folder benchmarks/results/rl
    python benchmarks/rl.py table --folder benchmarks/results/rl

If the folder has a settings.json, its values take the place of the constants below, as in benchmarks/results/rl/longer
and benchmarks/results/rl/hopeless.

# P = prompts of a step, G = rollouts of a prompt, T = tokens
"""

import argparse
import itertools
import json
import math
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import selective_backprop as sb
from selective_backprop import rl
from selective_backprop.policies import UniformPolicy
from selective_backprop.scorers.prompts import PromptScorer

WIDTH, HEADS, LAYERS = 144, 4, 2
PROMPT, ANSWER = 8, 5  # tokens: " 12+ 34=", then up to 4 digits and the end
END, SPACE, PLUS, EQUALS, VOCABULARY = 10, 11, 12, 13, 14
POOL, HELD_OUT, PROMPTS, ROLLOUTS = 240, 512, 12, 8
SHARES = (1, 1, 1)  # sums with 1, 2 and 3 digits
HOPELESS = 0.0  # share of the pool whose prompts no answer is right for
BUDGETS = (6_000, 12_000, 18_000, 24_000)  # generated tokens
RATES = (1e-4, 3e-4)
SEEDS, TUNING_SEED = (0, 1, 2, 3, 4), 100
PRETRAINING_STEPS, FORGOTTEN = 400, 0.6


class Transformer(nn.Module):
    """A decoder with a cache of keys and values, for prompts of equal length."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(PROMPT + ANSWER, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens, caches=None):
        start = 0 if caches is None or caches[0] is None else caches[0][0].shape[2]
        hidden = self.tokens(tokens) + self.places.weight[start : start + tokens.shape[1]]
        kept = []
        for number, block in enumerate(self.blocks):
            hidden, cache = block(hidden, None if caches is None else caches[number])
            kept.append(cache)
        return self.head(self.norm(hidden)), kept


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden, cache):
        rows, length, _ = hidden.shape
        parts = self.attention(self.first(hidden)).view(rows, length, 3, HEADS, WIDTH // HEADS)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        if cache is not None:
            keys, values = torch.cat([cache[0], keys], 2), torch.cat([cache[1], values], 2)
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=length > 1)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(rows, length, WIDTH))
        return hidden + self.down(F.gelu(self.up(self.second(hidden)))), (keys, values)


def problems(count, shares, generator, forgotten=0.0):
    """Draw sums of two numbers with 1 to 3 digits. Returns prompts (count, 8) and answers (count, 5).

    forgotten: chance that the answer forgets a carry, for each carry.
    """
    digits = torch.multinomial(torch.tensor(shares, dtype=torch.float64), count, replacement=True, generator=generator)
    low, high = torch.where(digits > 0, 10**digits, 0), 10 ** (digits + 1)
    drawn = torch.rand(2, count, generator=generator, dtype=torch.float64)
    pairs = (low + drawn * (high - low)).long().T.tolist()
    forgets = torch.rand(count, 3, generator=generator).lt(forgotten).tolist()
    prompts = [code(f"{a:>3}+{b:>3}=") for a, b in pairs]
    answers = [(add(a, b, which) + [END] * ANSWER)[:ANSWER] for (a, b), which in zip(pairs, forgets, strict=True)]
    return torch.tensor(prompts), torch.tensor(answers)


def add(a, b, forgets):
    """Add as by hand, the last digit first. A carry is lost where `forgets` says so."""
    found, carry = [], 0
    for place in range(max(len(str(a)), len(str(b)))):
        total = a // 10**place % 10 + b // 10**place % 10 + carry
        found.append(total % 10)
        carry = 0 if forgets[place] else total // 10
    return [*found, 1] if carry else found


def code(text):
    return [SPACE if char == " " else PLUS if char == "+" else EQUALS if char == "=" else int(char) for char in text]


def pretrain(folder):
    """Learn from the answers of somebody who often forgets to carry. All runs start from the same weights."""
    path = folder / "pretrained.pt"
    torch.manual_seed(101)
    model = Transformer()
    if path.exists():
        model.load_state_dict(torch.load(path, weights_only=True))
        return model
    generator = torch.Generator().manual_seed(102)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.05, PRETRAINING_STEPS)
    for _ in range(PRETRAINING_STEPS):
        prompts, answers = problems(64, (0.4, 0.4, 0.2), generator, FORGOTTEN)
        loss = -log_probabilities(model, prompts, answers).mul(is_answer(answers)).sum() / is_answer(answers).sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    torch.save(model.state_dict(), path)
    return model


def is_answer(tokens):
    """Which tokens count: those up to the first end, with it."""
    return (tokens.eq(END).cumsum(1) - tokens.eq(END).long()).eq(0)


def log_probabilities(model, prompts, answers):
    logits, _ = model(torch.cat([prompts, answers[:, :-1]], 1))
    return -F.cross_entropy(logits[:, PROMPT - 1 :].transpose(1, 2), answers, reduction="none")


@torch.no_grad()
def generate(model, prompts, rollouts, generator):
    """Draw answers, (P * rollouts, 5)."""
    logits, caches = model(prompts)
    caches = [tuple(part.repeat_interleave(rollouts, 0) for part in cache) for cache in caches]
    logits, answers, done = logits[:, -1].repeat_interleave(rollouts, 0), [], torch.zeros(1, dtype=torch.bool)
    for _ in range(ANSWER):
        token = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
        token = torch.where(done, END, token)
        answers.append(token)
        done = done | token.eq(END)
        if bool(done.all()):
            break
        logits, caches = model(token[:, None], caches)
        logits = logits[:, -1]
    found = torch.stack(answers, 1)
    return F.pad(found, (0, ANSWER - found.shape[1]), value=END)


def accuracy(model, prompts, answers):
    """Return the share of right answers among 4 draws per prompt, always with the same random numbers."""
    found = generate(model, prompts, 4, torch.Generator().manual_seed(5))
    return float(found.eq(answers.repeat_interleave(4, 0)).all(1).float().mean())


def random_half():
    """A random half of the prompts in each epoch: what `near_half` would be without looking."""
    return sb.Method("random_half", PromptScorer(), UniformPolicy(selectivity=0.5))


ARMS = {
    "plain": (rl.uniform, None),
    "random_half": (random_half, rl.drop_equal()),
    "greso": (rl.greso, rl.drop_equal()),
    "retire_mastered": (rl.retire_mastered, rl.drop_equal()),
    "near_half": (rl.near_half, rl.drop_equal()),
    "refill": (rl.uniform, rl.drop_equal(refill=2)),
    "greso + downsample": (rl.greso, rl.downsample(4)),
}


def train(arm, seed, rate, folder, budgets):
    """Train by GRPO until the last budget is used up. Returns one record per budget."""
    make_method, rollouts = ARMS[arm]
    model = pretrain(folder)
    data = torch.Generator().manual_seed(3000 + seed)
    pool, truth = problems(POOL, SHARES, data)
    held_out = problems(HELD_OUT, SHARES, data)
    truth[: int(HOPELESS * POOL)] = PLUS
    drawing = torch.Generator().manual_seed(4000 + seed)
    sampler = sb.SelectiveSampler(POOL, make_method(), batch_size=PROMPTS, seed=seed)
    ids_of_all = itertools.chain.from_iterable(iter(sampler) for _ in itertools.count())
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    stats, records, budgets = rl.RolloutStats(), [], list(budgets)
    records.append({"tokens": 0, "accuracy": accuracy(model, *held_out)})

    def draw():
        """Generate for the next prompts, and tell the sampler their rewards."""
        begin = time.perf_counter()
        ids = torch.tensor(list(itertools.islice(ids_of_all, PROMPTS)))
        answers = generate(model, pool[ids], ROLLOUTS, drawing)
        rewards = answers.eq(truth[ids].repeat_interleave(ROLLOUTS, 0)).all(1).float().view(PROMPTS, ROLLOUTS)
        sampler.update(rewards, ids=ids)
        stats.generations += 1
        stats.groups += PROMPTS
        stats.equal_groups += int(rewards.var(1, correction=0).eq(0).sum())
        stats.rollouts += len(answers)
        stats.generated_tokens += int(is_answer(answers).sum())
        stats.generating_seconds += time.perf_counter() - begin
        return ids, answers.view(PROMPTS, ROLLOUTS, ANSWER), rewards

    while budgets:
        ids, answers, rewards = draw()
        for _ in range(rollouts.refill if rollouts is not None else 0):
            equal = rewards.var(1, correction=0).eq(0)
            if not bool(equal.any()):
                break
            more_ids, more, more_rewards = draw()
            good = more_rewards.var(1, correction=0).gt(0).nonzero().flatten()[: int(equal.sum())]
            places = equal.nonzero().flatten()[: len(good)]
            ids[places], answers[places], rewards[places] = more_ids[good], more[good], more_rewards[good]
        begin = time.perf_counter()
        advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
        keep = torch.ones_like(rewards, dtype=torch.bool) if rollouts is None else rollouts.keep(rewards)
        if bool(keep.any()):
            prompts = pool[ids].repeat_interleave(ROLLOUTS, 0)[keep.flatten()]
            mask = is_answer(answers[keep]).float()
            # As if left-out groups were there: their advantages are 0. Of the others, m of G count.
            share = 1 if rollouts is None or rollouts.m is None else rollouts.m / ROLLOUTS
            size = is_answer(answers.flatten(0, 1)).sum() * share
            loss = -(log_probabilities(model, prompts, answers[keep]) * mask * advantages[keep][:, None]).sum() / size
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            stats.trained_rollouts += int(keep.sum())
            stats.trained_tokens += int(mask.sum())
        stats.training_seconds += time.perf_counter() - begin
        while budgets and stats.generated_tokens >= budgets[0]:
            costs = {name: round(value, 3) for name, value in stats.since(rl.RolloutStats()).items()}
            records.append({"tokens": budgets.pop(0), "accuracy": accuracy(model, *held_out), **costs})
    return records


def tune(folder):
    """Choose each arm's learning rate on a seed that is not used for results."""
    path = folder / "tuning.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    for arm in ARMS:
        for rate in RATES:
            if str(rate) not in found.setdefault(arm, {}):
                found[arm][str(rate)] = train(arm, TUNING_SEED, rate, folder, BUDGETS[:2])[-1]["accuracy"]
                path.write_text(json.dumps(found, indent=1) + "\n")
                print(arm, rate, found[arm][str(rate)], flush=True)


def run(folder):
    """Run every arm on every seed, seed by seed, and store each run as soon as it is done."""
    tuned, path = json.loads((folder / "tuning.json").read_text()), folder / "runs.jsonl"
    done = {(item["arm"], item["seed"]) for item in read(path)}
    for seed, arm in itertools.product(SEEDS, ARMS):
        if (arm, seed) in done:
            continue
        rate = float(max(tuned[arm], key=tuned[arm].get))
        records = train(arm, seed, rate, folder, BUDGETS)
        with path.open("a") as file:
            file.write(json.dumps({"arm": arm, "seed": seed, "rate": rate, "records": records}) + "\n")
        print(seed, arm, rate, [record["accuracy"] for record in records], flush=True)


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def interval(values):
    """Return the mean and half the width of its 95% interval, by Student's t."""
    quantiles = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}
    if len(values) < 2:
        return statistics.fmean(values), math.nan
    return statistics.fmean(values), quantiles[len(values)] * statistics.stdev(values) / math.sqrt(len(values))


def cost_to(records, target, key):
    """Return the tokens or seconds at which a run's accuracy first reaches the target, between budgets linearly."""
    last = {"tokens": 0, "seconds": 0.0, "accuracy": records[0]["accuracy"]}
    for record in records[1:]:
        now = {**record, "seconds": record["generating_seconds"] + record["training_seconds"]}
        if now["accuracy"] >= target:
            part = max(0.0, target - last["accuracy"]) / max(1e-9, now["accuracy"] - last["accuracy"])
            return last[key] + part * (now[key] - last[key])
        last = now
    raise ValueError(f"the accuracy {target} is never reached")


def multiplier(runs, baselines, key):
    """Return M and its 95% interval: how many times more the baseline needs for the accuracy that both reach at last.

    Runs of the same seed begin with the same accuracy. If no more than that is reached, both need nothing, and M is 1.
    """
    logarithms = []
    for run, baseline in zip(runs, baselines, strict=True):
        target = min(run[-1]["accuracy"], baseline[-1]["accuracy"])
        costs = [cost_to(records, target, key) for records in (baseline, run)]
        logarithms.append(math.log(costs[0] / costs[1]) if costs[1] else 0.0)
    mean, half = interval(logarithms)
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def table(folder):
    """Print accuracy by budget, what was wasted, and M by budget, against plain GRPO and against random prompts."""
    of = {(item["arm"], item["seed"]): item["records"] for item in read(folder / "runs.jsonl")}
    seeds = [seed for seed in SEEDS if all((arm, seed) in of for arm in ARMS)]
    budgets = " | ".join(f"{budget:,} tokens" for budget in BUDGETS)
    print(f"Held-out accuracy in percent. Seeds: {', '.join(map(str, seeds))}.\n")
    print(f"| arm | {budgets} | minus plain, at the end | equal groups | tokens trained on |")
    print("| --- " * (len(BUDGETS) + 4) + "|")
    for arm in ARMS:
        runs = [of[arm, seed] for seed in seeds]
        cells = [interval([100 * run[1 + number]["accuracy"] for run in runs]) for number in range(len(BUDGETS))]
        gain, half = interval(
            [100 * (of[arm, seed][-1]["accuracy"] - of["plain", seed][-1]["accuracy"]) for seed in seeds]
        )
        equal = statistics.fmean(run[-1]["equal_groups"] / run[-1]["groups"] for run in runs)
        trained = statistics.fmean(run[-1]["trained_tokens"] / run[-1]["generated_tokens"] for run in runs)
        shown = " | ".join(f"{mean:.1f} ± {half:.1f}" for mean, half in cells)
        print(f"| {arm} | {shown} | {gain:+.1f} ± {half:.1f} | {equal:.0%} | {trained:.0%} |")
    for baseline, key in itertools.product(("plain", "random_half"), ("tokens", "seconds")):
        print(f"\nM in {'generated tokens' if key == 'tokens' else key} against {baseline}.\n")
        print(f"| arm | {budgets} |")
        print("| --- " * (len(BUDGETS) + 1) + "|")
        for arm in [arm for arm in ARMS if arm != baseline]:
            cells = []
            for end in range(2, len(BUDGETS) + 2):
                runs, others = ([of[name, seed][:end] for seed in seeds] for name in (arm, baseline))
                cells.append("{:.2f} ({:.2f} to {:.2f})".format(*multiplier(runs, others, key)))
            print(f"| {arm} | {' | '.join(cells)} |")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("tune", "run", "table"))
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    if (path := options.folder / "settings.json").exists():
        settings = json.loads(path.read_text())
        arms = {name: ARMS[name] for name in settings.pop("ARMS", ARMS)}
        globals().update(settings, ARMS=arms)
    {"tune": tune, "run": run, "table": table}[options.command](options.folder)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
