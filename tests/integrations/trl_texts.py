"""Real text for TRL: lines of this repository's own files, a tokenizer trained on them, and tiny models."""

from datasets import Dataset
from peft import LoraConfig, PromptTuningConfig
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    set_seed,
)

from tests.integrations.texts import lines

TEMPLATE = "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} <eos>{% endfor %}"


def make_tokenizer(**special):
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(
        special_tokens=["<unk>", "<pad>", "<eos>", "user", "assistant"], vocab_size=400, show_progress=False
    )
    tokenizer.train_from_iterator(lines("LICENSE"), trainer)
    special = special or {"pad_token": "<pad>", "eos_token": "<eos>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", chat_template=TEMPLATE, **special)


def config(**options):
    defaults = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaConfig(vocab_size=400, max_position_embeddings=64, pad_token_id=1, **defaults | options)


def make_model(kind=LlamaForCausalLM, seed=0, **options):
    set_seed(seed)
    return kind(config(**options))


def make_classifier():
    return make_model(LlamaForSequenceClassification, num_labels=1)


def make_lora(task="CAUSAL_LM"):
    return LoraConfig(task_type=task, r=4, target_modules="all-linear")


def make_prompt():
    """Prompt tuning: three trained vectors before the tokens of each text."""
    return PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)


def make_experts():
    """A mixture of experts, whose loss has a term that balances them."""
    set_seed(0)
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "head_dim": 8}
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(vocab_size=400, pad_token_id=1, **size, **experts))


def text(count=61):
    """Lines of different lengths: some joined with those after them."""
    all_lines = lines("LICENSE")
    return Dataset.from_dict({"text": [" ".join(all_lines[i : i + 1 + i % 3]) for i in range(count)]})


def pairs(count=61):
    rows = lines("LICENSE")[: 2 * count]
    return Dataset.from_dict({"prompt": rows[:count], "completion": [" " + row for row in rows[count:]]})


def odd():
    """Examples of one token, without any label, and longer than a packed row."""
    lengths = [1, 4, 60, 1, 7, 30, 2, 9] * 3
    rows = [list(range(5, 5 + length)) for length in lengths]
    labels = [[-100] * len(row) if number % 5 == 4 else row for number, row in enumerate(rows)]
    return Dataset.from_dict({"input_ids": rows, "labels": labels})


def chats(count=61):
    rows = lines("LICENSE")[: 2 * count]
    talks = [
        [{"role": "user", "content": rows[i]}, {"role": "assistant", "content": rows[count + i]}] for i in range(count)
    ]
    return Dataset.from_dict({"messages": talks})


def preferences(count=40):
    rows = lines("LICENSE")[: 3 * count]
    columns = {"prompt": rows[:count], "chosen": rows[count : 2 * count], "rejected": rows[2 * count :]}
    return Dataset.from_dict(columns)
