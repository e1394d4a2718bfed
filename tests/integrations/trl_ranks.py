"""Two ranks that train a model sharded by Accelerate's own FSDP2, on gloo.

Accelerate shards only on accelerators. What it would find out about them is set here; the sharding is its own.
"""

from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch.distributed.tensor import DTensor
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments
from trl import SFTConfig, SFTTrainer

import selective_backprop as sb
from selective_backprop.integrations.transformers import SelectiveTrainer
from selective_backprop.integrations.trl import SelectiveSFTTrainer
from tests.integrations import trl_texts as texts

OPTIONS = {
    "num_train_epochs": 2,
    "per_device_train_batch_size": 4,
    "learning_rate": 1e-2,
    "save_strategy": "no",
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
    "gradient_checkpointing": False,
}


def sharded(trainer):
    """Let Accelerate shard the trainer's model by FSDP2."""
    state = trainer.accelerator.state
    state.distributed_type = DistributedType.FSDP
    state.fsdp_plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
        cpu_ram_efficient_loading=False,
    )
    trainer.is_fsdp_enabled = True
    return trainer


def run(folder, method=None, *, of_trl=True, **options):
    """Train; return the whole weights, and the statistics."""
    tokenizer, settings = texts.make_tokenizer(), {} if method is None else {"method": method}
    data = texts.text(32)
    if of_trl:
        kind = SFTTrainer if method is None else SelectiveSFTTrainer
        args = SFTConfig(output_dir=folder, max_length=48, **OPTIONS | options)
    else:
        kind = Trainer if method is None else SelectiveTrainer
        args = TrainingArguments(output_dir=folder, **OPTIONS | options)
        data = data.map(lambda row: {"input_ids": tokenizer(row["text"])["input_ids"]}, remove_columns="text")
        settings["data_collator"] = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    trainer = kind(model=texts.make_model(), args=args, train_dataset=data, processing_class=tokenizer, **settings)
    sharded(trainer).train()
    parameters = dict(trainer.model.named_parameters())
    assert all(isinstance(parameter, DTensor) for parameter in parameters.values())
    found = {"weights": {name: parameter.full_tensor().detach() for name, parameter in parameters.items()}}
    if method is not None:
        stats = trainer.selective_loader.stats
        found |= {"trained": stats.trained, "batches": stats.batches, "offered": stats.offered}
    return found


def sharded_runs(folder):
    """Return what each of them found, on this rank."""
    return {
        "plain": run(folder),
        "everything": run(folder, sb.methods.ledger_percentile(1.0)),
        "sb": run(folder, sb.selective_backprop(1 / 2)),
        "packed": run(folder, sb.methods.ledger_percentile(1 / 2), packing=True, per_device_train_batch_size=1),
        "trainer": run(folder, of_trl=False),
        "trainer, everything": run(folder, sb.methods.ledger_percentile(1.0), of_trl=False),
    }
