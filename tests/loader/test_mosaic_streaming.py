"""MosaicML Streaming, whose package needs older versions of others than ours: its tests run where it is installed."""

import copy

import pytest
import torch
from torch import nn

import selective_backprop as sb

streaming = pytest.importorskip("streaming", reason="install mosaicml-streaming to test it")
pytestmark = pytest.mark.filterwarnings("default")
NUM, SIZE = 96, 8


def rows():
    draws = torch.Generator().manual_seed(3)
    return torch.randn(NUM, 4, generator=draws), torch.randint(3, (NUM,), generator=draws)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("count", [2, None], ids=["in mid-epoch", "between epochs"])
def test_5_mosaicml_streaming_resumes_by_its_own_state(workers, count, tmp_path):
    with streaming.MDSWriter(
        out=str(tmp_path), columns={"inputs": "ndarray", "targets": "int"}, size_limit=512
    ) as writer:
        for inputs, target in zip(*rows(), strict=True):
            writer.write({"inputs": inputs.numpy(), "targets": int(target)})

    def loader():
        streaming.base.util.clean_stale_shared_memory()
        data = streaming.StreamingDataset(local=str(tmp_path), batch_size=SIZE, shuffle=True, num_canonical_nodes=1)
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        batches = streaming.StreamingDataLoader(data, batch_size=SIZE, num_workers=workers)
        return sb.SelectiveLoader(
            batches,
            model,
            nn.CrossEntropyLoss(),
            sb.top_k(0.5),
            forward=lambda model, batch: (model(batch["inputs"]), batch["targets"]),
            num_epochs=2,
        )

    def of_epoch(selective, number=None):
        found = []
        for batch in selective:
            selective.loss(selective.model(batch["inputs"]), batch["targets"])
            found.append(batch["inputs"].clone())
            if len(found) == number:
                break
        return found

    whole = loader()
    epochs = [of_epoch(whole), of_epoch(whole)]
    assert whole.progress == 1 and len(epochs[0]) == 6 and not torch.equal(epochs[0][0], epochs[1][0])
    first = loader()
    before = of_epoch(first, count)
    second = loader()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    found = before + (of_epoch(second) if count else []) + of_epoch(second)
    assert all(torch.equal(*pair) for pair in zip(epochs[0] + epochs[1], found, strict=True))
