"""Views by id: a run with another network repeats the views of an earlier run together with its selection."""

import dataclasses

import pytest
import torch

from selective_backprop.lab.data.augment import Augment
from selective_backprop.lab.data.datasets import load_images
from selective_backprop.lab.runs.ledger_log import LedgerLog, read_selections
from selective_backprop.lab.runs.methods import make_method
from selective_backprop.lab.runs.recipes import find_recipe
from selective_backprop.lab.runs.records import RunFolder
from selective_backprop.lab.runs.settings import Settings
from selective_backprop.lab.runs.training import start, train

CPU = torch.device("cpu")
ALL = load_images("digits")
DIGITS = dataclasses.replace(ALL, train_images=ALL.train_images[:384], train_labels=ALL.train_labels[:384])
RECIPE = find_recipe("digits").with_(epochs=3, padding=2, flip=True, cutout=3)


def test_an_image_has_the_same_view_in_any_batch():
    images, augment = torch.rand(20, 1, 8, 8), Augment(padding=2, cutout=3)
    ids = torch.arange(100, 120)
    together = augment.by_id(images, ids, seed=5, epoch=2)
    some = torch.tensor([7, 3, 19])
    assert torch.equal(together[some], augment.by_id(images[some], ids[some], seed=5, epoch=2))
    for other in ({"seed": 6, "epoch": 2}, {"seed": 5, "epoch": 3}):
        assert not torch.equal(together, augment.by_id(images, ids, **other))
    state = augment.generator.get_state()
    augment.by_id(images, ids, seed=5, epoch=2)
    assert torch.equal(state, augment.generator.get_state())


def test_all_crops_and_flips_are_equally_likely():
    """Each of 9 crops in its 2 directions, within five standard deviations."""
    images = torch.arange(9.0).view(1, 1, 3, 3).expand(18_000, 1, 3, 3) + 1
    views = Augment(padding=1, flip=True).by_id(images, torch.arange(18_000), seed=0, epoch=0)
    counts = views.flatten(1).unique(dim=0, return_counts=True)[1]
    assert len(counts) == 18
    assert (counts - 1000).abs().max() < 5 * 1000**0.5


def settings_for(method, model="small_cnn", **options):
    return Settings(recipe=RECIPE.with_(model=model), method=method, selectivity=0.5, options=options, seed=len(model))


def seen_by(training):
    """The examples that a run trains on: pairs of id and view."""
    views = set()
    for _ in range(3):
        for images, labels in training.loader:
            for example, image in zip(training.loader.batch.ids.tolist(), images, strict=True):
                views.add((example, image.numpy().tobytes()))
            training.loader.loss(training.model(images), labels).backward()
            training.optimizer.step()
            training.optimizer.zero_grad()
    return views


def test_another_network_sees_the_same_views_of_the_same_examples(tmp_path):
    """With a proxy that learns from its own selection, as airbench does, and then for free."""
    settings = settings_for("top_k", proxy="small_cnn", train_share=0.5, views=11)
    with RunFolder(tmp_path, settings.as_json()) as folder:
        train(settings, DIGITS, folder=folder, device=CPU, observers=[LedgerLog(tmp_path)])
    assert read_selections(tmp_path).view_seed == 11
    first = seen_by(start(settings, DIGITS, device=CPU))
    repeated = start(settings_for("recorded_backprop", "small_resnet", run=str(tmp_path)), DIGITS, device=CPU)
    assert repeated.prepare.view_seed == 11
    second = seen_by(repeated)
    assert repeated.loader.stats.scored == 0
    assert first == second
    unlike = seen_by(start(settings_for("top_k", proxy="small_cnn", views=12), DIGITS, device=CPU))
    assert len(first & unlike) < 0.1 * len(first)


def test_without_views_the_augmentation_is_drawn_as_before():
    plain = start(settings_for("traditional"), DIGITS, device=CPU)
    assert plain.prepare.view_seed is None and not plain.prepare.takes_ids


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("top_k", {"views": "new"}, "views must be a whole number, got 'new'"),
        ("recorded", {"views": 1, "run": "runs/a"}, "recorded_backprop sees the views of the run that it repeats"),
    ],
)
def test_bad_views(name, options, message):
    with pytest.raises(ValueError, match=message):
        make_method(name, 0.5, options)
