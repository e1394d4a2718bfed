"""What runs on the ranks of a test that starts them as torchrun does: it loads, trains, saves, and may be killed.

    main(FOLDER, "RANK:STEP", ...)

Rank RANK is killed after step STEP, the first at the first start, the second at the second one.
"""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import selective_backprop as sb
from selective_backprop.distributed.ranks import current_ranks
from tests.distributed.test_checkpoints import EPOCHS, Run, by_percentile


def main(folder, *kills):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    start = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    kill = [int(number) for number in kills[start].split(":")] if start < len(kills) else None
    run = Run(current_ranks(), by_percentile())
    loaded = sb.load_checkpoint(folder / "checkpoints", run.loader, **run.parts)
    (folder / f"start-{start}-{dist.get_rank()}").write_text(str(run.loader.stats.batches if loaded else "none"))

    def on_step(step):
        if kill == [dist.get_rank(), step]:
            os.kill(os.getpid(), signal.SIGKILL)
        if step % 2 == 0:
            sb.save_checkpoint(folder / "checkpoints", run.loader, **run.parts)

    run.train(until=EPOCHS, on_step=on_step)
    torch.save(run.result(), folder / f"result-{dist.get_rank()}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
