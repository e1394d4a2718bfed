"""Checkpoints of one process: exactness, damage, malice. Those of several ranks are in tests/distributed."""

import copy
import os
import shutil

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb
from selective_backprop.checkpoint import folders
from selective_backprop.files.sealed import seal
from selective_backprop.testing import same
from tests.helpers import digits, make_loader, make_model, train


class RandomState:
    """torch's global one, for dropout."""

    def state_dict(self):
        return {"torch": torch.get_rng_state()}

    def load_state_dict(self, state):
        torch.set_rng_state(state["torch"])


def make_run(method=None, **options):
    model = make_model()
    generator = torch.Generator().manual_seed(3)
    loader = make_loader(
        method or sb.selective_backprop(0.5),
        model=model,
        num_epochs=3,
        loader_options={"generator": generator},
        **options,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return loader, {"model": model, "optimizer": optimizer, "random": RandomState()}


def go_on(loader, parts, epochs=3, on_step=None):
    return train(loader, parts["model"], epochs, optimizer=parts["optimizer"], on_step=on_step)


@pytest.mark.parametrize(
    "method",
    [
        sb.selective_backprop(0.5),
        sb.methods.ledger_percentile(0.5),
        sb.methods.predicted_selective_backprop(0.5),
        sb.traditional(),
    ],
    ids=lambda method: method.name,
)
def test_a_run_goes_on_as_if_it_had_never_stopped(tmp_path, method):
    loader, parts = make_run(method)
    torch.manual_seed(5)

    def save(step, optimizer):
        if step == 9:
            sb.save_checkpoint(tmp_path, loader, **parts)

    batches = go_on(loader, parts, on_step=save)
    resumed, new_parts = make_run(method)
    assert sb.load_checkpoint(tmp_path, resumed, **new_parts)
    assert go_on(resumed, new_parts) == batches[9:]
    assert same(new_parts["model"].state_dict(), parts["model"].state_dict())
    assert same(new_parts["optimizer"].state_dict(), parts["optimizer"].state_dict())
    assert same(resumed.ledger.state_dict(), loader.ledger.state_dict())


def test_the_first_start_has_nothing_to_load(tmp_path):
    loader, parts = make_run()
    assert sb.load_checkpoint(tmp_path / "new", loader, **parts) is False
    assert not (tmp_path / "new").exists()


def test_a_path_within_the_folder_is_no_first_start(tmp_path):
    """Or a run would begin anew in silence because of a path that is too long."""
    loader, parts = make_run()
    sb.save_checkpoint(tmp_path, loader, **parts)
    inner, file = tmp_path / "checkpoint-1", tmp_path / "checkpoint-1" / "rank-0.pt"
    before = file.read_bytes()
    for call in (sb.load_checkpoint, sb.save_checkpoint):
        with pytest.raises(
            ValueError, match=f"checkpoint-1 is one checkpoint, not the folder of them: pass {tmp_path}"
        ):
            call(inner, loader, **parts)
        with pytest.raises(ValueError, match=r"rank-0\.pt is a file, not the folder of the checkpoints"):
            call(file, loader, **parts)
    assert [*inner.iterdir()] == [file] and file.read_bytes() == before


def test_saving_changes_nothing(tmp_path):
    loader, parts = make_run()
    before = parts["optimizer"].state_dict()
    sb.save_checkpoint(tmp_path, loader, **parts)  # before the first step
    assert same(parts["optimizer"].state_dict(), before) and not before["state"]
    assert all(parameter.grad is None for parameter in parts["model"].parameters())
    resumed, new_parts = make_run()
    assert sb.load_checkpoint(tmp_path, resumed, **new_parts)
    assert not new_parts["optimizer"].state_dict()["state"]


def saved_twice(folder):
    """A folder with two checkpoints, and the model's weights in each."""
    loader, parts = make_run()
    weights = []
    for _ in range(2):
        go_on(loader, parts, epochs=loader.epoch + 1)
        sb.save_checkpoint(folder, loader, **parts)
        weights.append({name: value.clone() for name, value in parts["model"].state_dict().items()})
    return weights


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two") / "run"
    return folder, saved_twice(folder)


@pytest.fixture
def copied(two_checkpoints, tmp_path):
    folder, weights = two_checkpoints
    return shutil.copytree(folder, tmp_path / "run"), weights


@pytest.mark.parametrize("harm", [flip_a_bit, truncate, os.unlink])
def test_a_damaged_checkpoint_is_found_out_and_the_one_before_is_used(copied, harm):
    folder, weights = copied
    harm(folder / "checkpoint-2" / "rank-0.pt")
    loader, parts = make_run()
    with pytest.warns(
        UserWarning, match=r"going on from .*checkpoint-1, as newer checkpoints are damaged: checkpoint-2: "
    ):
        assert sb.load_checkpoint(folder, loader, **parts)
    assert same(parts["model"].state_dict(), weights[0])
    assert loader.epoch == 1


def test_nothing_is_loaded_when_all_are_damaged(copied):
    folder, _ = copied
    flip_a_bit(folder / "checkpoint-2" / "rank-0.pt")
    truncate(folder / "checkpoint-1" / "rank-0.pt")
    loader, parts = make_run()
    expected = r"no checkpoint in .* can be used: checkpoint-2: rank-0.pt damaged: .*; checkpoint-1: rank-0.pt damaged"
    with pytest.raises(ValueError, match=expected):
        sb.load_checkpoint(folder, loader, **parts)
    assert same(parts["model"].state_dict(), make_model().state_dict())


def test_the_newest_two_are_kept(copied):
    folder, _ = copied
    loader, parts = make_run()
    sb.save_checkpoint(folder, loader, **parts)
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-3"]


def test_a_damaged_checkpoint_does_not_take_the_place_of_a_sound_one(tmp_path):
    loader, parts = make_run()
    for _ in range(2):
        sb.save_checkpoint(tmp_path, loader, **parts)
    os.truncate(tmp_path / "checkpoint-2" / "rank-0.pt", 100)
    with pytest.warns(UserWarning, match="checkpoint-1, as newer checkpoints are damaged"):
        sb.load_checkpoint(tmp_path, loader, **parts)
    kept = []
    for _ in range(2):
        sb.save_checkpoint(tmp_path, loader, **parts)
        kept.append(sorted(path.name[-1] for path in tmp_path.glob("checkpoint-*")))
    assert kept == [["1", "2", "3"], ["3", "4"]]


def test_a_save_that_does_not_finish_leaves_the_others_as_they_are(copied, monkeypatch):
    folder, weights = copied
    loader, parts = make_run()

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(folders, "commit", killed)
        with pytest.raises(KeyboardInterrupt):
            sb.save_checkpoint(folder, loader, **parts)
    assert not list(folder.glob("*.unfinished"))
    (folder / "checkpoint-1234.unfinished").mkdir()  # what a killed process leaves
    assert sb.load_checkpoint(folder, loader, **parts)
    assert same(parts["model"].state_dict(), weights[1])
    sb.save_checkpoint(folder, loader, **parts)
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-3"]


def test_the_first_save_that_does_not_finish_is_a_first_start(tmp_path):
    (tmp_path / "checkpoint-1234.unfinished").mkdir()
    loader, parts = make_run()
    assert sb.load_checkpoint(tmp_path, loader, **parts) is False


# ---- what does not fit


def test_what_does_not_fit_is_refused_before_anything_is_changed(copied):
    folder, _ = copied
    loader, parts = make_run()
    before = loader.ledger.state_dict()
    with pytest.raises(ValueError, match=r"the checkpoint has the parts \['model', 'optimizer', 'random'\], but"):
        sb.load_checkpoint(folder, loader, model=parts["model"])
    with pytest.raises(ValueError, match=r"parts/model/6.weight is \(10, 16\) in the checkpoint and \(9, 16\) here"):
        sb.load_checkpoint(folder, loader, **parts | {"model": make_model(classes=9)})
    with pytest.raises(ValueError, match=r"parts/model does not fit the checkpoint: .* only there, nothing only here"):
        sb.load_checkpoint(folder, loader, **parts | {"model": make_model()[:3]})
    with pytest.raises(ValueError, match=r"parts/optimizer has groups of \[2\] parameters, the checkpoint of \[10\]"):
        sb.load_checkpoint(folder, loader, **parts | {"optimizer": torch.optim.AdamW(nn.Linear(2, 2).parameters())})
    assert same(loader.ledger.state_dict(), before) and loader.epoch == 0
    assert same(parts["model"].state_dict(), make_model().state_dict())


def test_another_optimizer_is_refused(tmp_path):
    loader, model = make_loader(sb.traditional()), make_model()
    sb.save_checkpoint(tmp_path, loader, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    other = torch.optim.Adam(model.parameters(), lr=0.5)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(
        ValueError, match=r"parts/optimizer was saved by another optimizer than this Adam.* lack .*betas"
    ):
        sb.load_checkpoint(tmp_path, loader, optimizer=other)
    assert same(before, other.state_dict())
    assert sb.load_checkpoint(tmp_path, loader, optimizer=torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9))


def test_another_data_set_or_method_is_refused(copied):
    folder, _ = copied
    _, parts = make_run()
    other = make_run(dataset=digits(100))[0]
    with pytest.raises(ValueError, match="saved ledger has 203 examples but the data set has 100: was it saved"):
        sb.load_checkpoint(folder, other, **parts)
    with pytest.raises(ValueError, match="saved by the method selective_backprop, but this loader has random_backprop"):
        sb.load_checkpoint(folder, make_run(sb.random_backprop(0.5))[0], **parts)
    assert same(parts["model"].state_dict(), make_model().state_dict())


class Refusing:
    """A part that takes note of what it loads, and refuses the state of another run."""

    def __init__(self, run, note):
        self.run, self.note = run, note

    def state_dict(self):
        return {"run": self.run}

    def load_state_dict(self, state):
        self.note.append(state["run"])
        if state["run"] != self.run:
            raise RuntimeError("this is of another run")


def test_a_part_that_refuses_its_state_leaves_everything_as_it_was(tmp_path):
    loader, parts = make_run()
    go_on(loader, parts, epochs=1)
    sb.save_checkpoint(tmp_path, loader, **parts, odd=Refusing("a", []))
    loader, parts = make_run()
    go_on(loader, parts, epochs=2)

    def everything():
        return loader.state_dict(), *(copy.deepcopy(part.state_dict()) for part in parts.values())

    before, loaded = everything(), []
    with pytest.raises(ValueError, match=r"cannot be loaded, and nothing was changed .*this is of another run"):
        sb.load_checkpoint(tmp_path, loader, **parts, odd=Refusing("b", loaded))
    assert loaded == ["a", "b"], "it got its own state back"
    assert same(everything(), before)


def test_a_model_with_other_buffers_is_refused_and_changes_nothing(tmp_path):
    loader, parts = make_run()
    go_on(loader, parts, epochs=1)
    sb.save_checkpoint(tmp_path, loader, **parts)
    for name, buffer in (("added", torch.zeros(2)), ("running_mean", torch.zeros(7))):
        loader, parts = make_run()
        parts["model"][1].register_buffer(name, buffer)
        before = copy.deepcopy([loader.state_dict(), *(part.state_dict() for part in parts.values())])
        with pytest.raises(ValueError, match=rf"nothing was changed \(RuntimeError: Error(?s:.)*{name}"):
            sb.load_checkpoint(tmp_path, loader, **parts)
        assert same([loader.state_dict(), *(part.state_dict() for part in parts.values())], before)


def test_a_checkpoint_of_a_stranger_with_something_wrong_is_refused_and_changes_nothing(tmp_path):
    loader, parts = make_run()
    go_on(loader, parts, epochs=1)
    sb.save_checkpoint(tmp_path, loader, **parts)
    file = tmp_path / "checkpoint-1" / "rank-0.pt"
    saved = torch.load(file, weights_only=True)
    before = loader.state_dict(), copy.deepcopy(parts["optimizer"].state_dict())
    optimizer = saved["parts"]["optimizer"]
    for wrong in (
        {"loader": 5},
        {"loader": {"ledger": {"writes": []}}},
        {"parts": 3},
        {"parts": saved["parts"] | {"optimizer": {}}},
        {"parts": saved["parts"] | {"optimizer": optimizer | {"shared": [[99, "exp_avg"]]}}},
        {"parts": saved["parts"] | {"random": {}}},
        {"ranks": 2},
        {"tensors": {}},
        {"tensors": {name: {} for name in saved["tensors"]}},
        {"tensors": {name: chunk | {"values": None} for name, chunk in saved["tensors"].items()}},
        {"tensors": {name: chunk | {"values": chunk["values"][:1]} for name, chunk in saved["tensors"].items()}},
    ):
        file.write_bytes(seal(saved | wrong))
        with pytest.raises(ValueError, match=r"checkpoint|state"):
            sb.load_checkpoint(tmp_path, loader, **parts)
        assert same((loader.state_dict(), parts["optimizer"].state_dict()), before)


def test_a_terminal_obeys_nothing_in_a_message_about_a_checkpoint(tmp_path):
    loader, parts = make_run()
    sb.save_checkpoint(tmp_path, loader, **parts)
    file = tmp_path / "checkpoint-1" / "rank-0.pt"
    saved = torch.load(file, weights_only=True)
    key, odd = next(iter(saved["tensors"])), "\x1b]0;title\x07"
    stats = saved["loader"]["stats"] | {odd: 1}
    for wrong in (
        {"tensors": saved["tensors"] | {f"parts/model/{odd}": saved["tensors"][key]}},
        {"loader": saved["loader"] | {"stats": stats}},
    ):
        file.write_bytes(seal(saved | wrong))
        with pytest.raises(ValueError, match=r"\\x1b\]0;title\\x07") as caught:
            sb.load_checkpoint(tmp_path, loader, **parts)
        assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("fused", [False, True])
def test_a_checkpoint_of_a_stranger_cannot_make_a_fused_optimizer_write_beyond_its_tensors(tmp_path, fused):
    """torch's fused steps do not look at shapes; and a checkpoint may say that steps are fused."""
    loader, parts = make_run()
    parts["optimizer"] = torch.optim.AdamW(parts["model"].parameters(), lr=0.01, fused=True)
    go_on(loader, parts, epochs=1)
    sb.save_checkpoint(tmp_path, loader, **parts)
    file = tmp_path / "checkpoint-1" / "rank-0.pt"
    saved = torch.load(file, weights_only=True)
    optimizer = saved["parts"]["optimizer"]
    optimizer["shared"].remove([0, "exp_avg"])
    optimizer["state"][0]["exp_avg"] = torch.zeros(1)
    del saved["tensors"]["parts/optimizer/0/exp_avg"]
    file.write_bytes(seal(saved))
    loader, parts = make_run()
    parts["optimizer"] = torch.optim.AdamW(parts["model"].parameters(), lr=0.01, fused=fused)
    before = copy.deepcopy([loader.state_dict(), *(part.state_dict() for part in parts.values())])
    with pytest.raises(ValueError, match=r"parts/optimizer has 'exp_avg' of shape \(1,\) for a parameter of shape \("):
        sb.load_checkpoint(tmp_path, loader, **parts)
    assert same([loader.state_dict(), *(part.state_dict() for part in parts.values())], before)


def test_files_that_were_not_saved_together_are_refused(tmp_path):
    """As after a copy of the folder that was broken off: each file is whole, but they are of two checkpoints."""
    loader, parts = make_run()
    for _ in range(2):
        sb.save_checkpoint(tmp_path, loader, **parts)
    older, newer = (torch.load(tmp_path / f"checkpoint-{n}" / "rank-0.pt", weights_only=True) for n in (1, 2))
    (tmp_path / "checkpoint-2" / "rank-0.pt").write_bytes(seal(newer | {"ranks": 2}))
    for other in (older | {"saved_as": [older["saved_as"][0], 1]}, newer):
        (tmp_path / "checkpoint-2" / "rank-1.pt").write_bytes(seal(other))
        with pytest.warns(UserWarning, match=r"rank-1.pt was not saved by rank 1 together with rank-0.pt"):
            assert sb.load_checkpoint(tmp_path, loader, **parts)


class Odd:
    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def test_the_ledger_is_in_memory_only_once_more_while_it_is_loaded_and_never_while_it_is_saved(tmp_path):
    """In bytes of the ledger of a million examples: what torch allocates beside it."""
    data = TensorDataset(torch.zeros(1_000_000, 1), torch.zeros(1_000_000, dtype=torch.int64))
    train_loader, model = DataLoader(data, 100_000), nn.Linear(1, 2)
    loader = sb.SelectiveLoader(train_loader, model, nn.CrossEntropyLoss(), sb.ledger_backprop())
    own = sum(column.nbytes for column in loader.ledger.state_dict().values())
    for act, most in ((sb.save_checkpoint, 0.1), (sb.load_checkpoint, 1.5)):
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as events:
            act(tmp_path, loader, model=model)
        held, highest = 0, 0
        for event in events.profiler.kineto_results.events():
            if event.name() == "[memory]":
                held += event.nbytes()
                highest = max(highest, held)
        assert highest < most * own, act.__name__


def test_what_could_not_be_read_safely_is_refused_when_it_is_saved(tmp_path):
    loader, parts = make_run()
    with pytest.raises(TypeError, match="state_dict of parts/odd has more in it than plain data and tensors"):
        sb.save_checkpoint(tmp_path, loader, **parts, odd=Odd({"object": Odd(1)}))
    with pytest.raises(TypeError, match=r"parts/steps must have state_dict and load_state_dict .*, got int"):
        sb.save_checkpoint(tmp_path, loader, **parts, steps=3)
    assert not list(tmp_path.iterdir())
    sb.save_checkpoint(tmp_path, loader, odd=Odd({"steps": 3, "values": [torch.ones(2), None, "text"]}))
    odd = Odd(None)
    sb.load_checkpoint(tmp_path, loader, odd=odd)
    assert odd.state["steps"] == 3 and odd.state["values"][0].tolist() == [1, 1]


# ---- malice


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_no_code_in_a_checkpoint_is_run(copied, tmp_path):
    folder, _ = copied
    bomb = Bomb(tmp_path / "exploded")
    (folder / "checkpoint-2" / "rank-0.pt").write_bytes(seal({"ranks": 1, "loader": bomb, "parts": {}, "tensors": {}}))
    loader, parts = make_run()
    with pytest.warns(UserWarning, match="going on from .*checkpoint-1, as newer checkpoints are damaged"):
        sb.load_checkpoint(folder, loader, **parts)
    assert not bomb.path.exists()
