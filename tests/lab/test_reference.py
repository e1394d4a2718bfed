"""Reference losses by cross-fitting: nobody is scored by a network that has seen it, and the passes are counted."""

import json

import pytest
import torch

from selective_backprop.testing import global_random_states, same
from selective_backprop_lab.data.datasets import ImageSet
from selective_backprop_lab.models import make_model
from selective_backprop_lab.runs.costs import forward_operations
from selective_backprop_lab.runs.recipes import find_recipe
from selective_backprop_lab.runs.records import RunFolder
from selective_backprop_lab.runs.settings import Settings
from selective_backprop_lab.runs.training import Training, advance, start

CPU = torch.device("cpu")
RECIPE = find_recipe("digits").with_(epochs=2, batch_size=16)
NETWORK = "tests.lab.networks:with_dropout"


def some_images(count=61):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 1, 8, 8), generator=generator, dtype=torch.uint8)
    return images, torch.randint(10, (count,), generator=generator)


def losses_of(images, labels, *, seed=0, epochs=2):
    data = ImageSet("some", images, labels, *some_images(20), tuple("0123456789"))
    options = {"reference": NETWORK, "reference_epochs": epochs}
    settings = Settings(
        recipe=RECIPE.with_(model=NETWORK), method="reducible_loss", selectivity=0.5, options=options, seed=seed
    )
    return Training(settings, data, CPU).loader.scorer.reference


def test_no_example_is_scored_by_a_network_that_has_seen_it():
    """Changing an example changes its own loss, and the losses of the other half alone."""
    images, labels = some_images()
    before = losses_of(images, labels)
    halves = torch.randperm(61, generator=torch.Generator().manual_seed(0)).chunk(2)
    changed = int(halves[0][0])
    images[changed] = 255 - images[changed]
    after = losses_of(images, labels)
    others = halves[0][1:]
    assert torch.equal(before[others], after[others])
    assert before[changed] != after[changed]
    assert (before[halves[1]] != after[halves[1]]).float().mean() > 0.9


def test_the_seed_decides_everything_and_global_states_stay():
    images, labels = some_images()
    states = global_random_states()
    first = losses_of(images, labels)
    assert same(states, global_random_states())
    torch.manual_seed(77)
    assert torch.equal(first, losses_of(images, labels))
    assert not torch.equal(first, losses_of(images, labels, seed=1))
    assert torch.isfinite(first).all()


def test_a_longer_training_learns_more():
    """On data that can be learned: the label is the brightest of ten pixels."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(10, (400,), generator=generator)
    images = torch.randint(100, (400, 1, 8, 8), generator=generator, dtype=torch.uint8)
    images.view(400, 64)[torch.arange(400), labels] = 255
    short, long = (losses_of(images, labels, epochs=epochs).mean() for epochs in (1, 20))
    assert long < 0.5 * short


def run_settings(**more):
    options = {"reference": "small_cnn", "reference_epochs": 2}
    return Settings(recipe=RECIPE, method="reducible_loss", selectivity=0.5, options=options, **more)


def digits_set():
    (images, labels), (test_images, test_labels) = some_images(120), some_images(40)
    return ImageSet("some", images, labels, test_images, test_labels, tuple("0123456789"))


def test_the_passes_of_the_reference_count_in_the_first_epoch():
    training = Training(run_settings(), digits_set(), CPU)
    example = training.normalise(training.dataset.images[:1])
    reference = make_model("small_cnn", num_classes=10, channels=1, seed=0)
    share = forward_operations(reference, example) / forward_operations(training.model, example)
    first, second = training.epoch(), training.epoch()
    # Two epochs of training at three passes per example, and one pass to score, at the share of the network.
    plain = [(record["scored"] + 3 * record["trained"]) / (3 * 120) for record in (first, second)]
    assert first["compute"] == pytest.approx(plain[0] + share * (2 + 1 / 3))
    assert second["compute"] == pytest.approx(plain[1])
    assert first["seconds"]["selection"] > training.preparation.seconds > 0


def test_a_resumed_run_has_the_same_reference(tmp_path):
    data, settings = digits_set(), run_settings()
    through = start(settings, data, device=CPU)
    records = [through.epoch(), through.epoch()]
    with RunFolder(tmp_path, settings.as_json()) as folder:
        advance(start(settings, data, folder, CPU), folder)
        resumed = start(settings, data, folder, CPU)
        advance(resumed, folder)
    for one, other in zip(records, resumed.records, strict=True):
        assert json.dumps({k: v for k, v in one.items() if k != "seconds"}) == json.dumps(
            {k: v for k, v in other.items() if k != "seconds"}
        )
    assert same(through.model.state_dict(), resumed.model.state_dict())
