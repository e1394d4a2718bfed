import pytest
import torch
from PIL import Image

from selective_backprop_lab.runs.methods import MethodSpec
from selective_backprop_lab.runs.recipes import RECIPES, Decay, find_recipe
from selective_backprop_lab.runs.training import load_data
from selective_backprop_lab.study.comparison import settings_for
from tests.lab.runs import train


def rates(recipe, *epochs):
    return [recipe.lr_at(epoch / recipe.epochs) for epoch in epochs]


@pytest.mark.parametrize(
    ("name", "milestones", "factor"),
    [
        ("cifar10", (60, 120, 160), 0.2),
        ("cifar10_fast", (48, 96, 128), 0.2),
        ("cifar100", (60, 120), 0.1),
        ("cifar100_fast", (48, 96), 0.1),
        ("svhn", (60, 120), 0.1),
        ("svhn_fast", (48, 96), 0.1),
    ],
)
def test_the_papers_schedules(name, milestones, factor):
    recipe = RECIPES[name]
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, factor)
    expected = []
    for _ in range(recipe.epochs):
        expected.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    assert rates(recipe, *range(recipe.epochs)) == pytest.approx(expected)
    assert (recipe.batch_size, recipe.weight_decay, recipe.momentum) == (128, 5e-4, 0.9)


def test_selectivities_and_cutouts_are_the_papers():
    assert [(r.selectivity, r.cutout) for r in (RECIPES[n] for n in ("cifar10", "cifar100", "svhn"))] == [
        (1 / 3, 16),
        (1 / 2, 8),
        (1 / 4, 20),
    ]


@pytest.mark.parametrize("epochs", [5, 10, 37])
def test_a_compressed_schedule_decays_at_the_same_fractions(epochs):
    long, short = RECIPES["cifar10"], RECIPES["cifar10"].with_(epochs=epochs)
    for progress in (0, 0.29, 0.3, 0.59, 0.6, 0.79, 0.8, 1):
        assert short.lr_at(progress) == long.lr_at(progress)


def test_budget_schedules_end_at_zero():
    for kind in ("cosine", "linear"):
        decay = Decay(kind=kind)
        assert decay.at(0) == 1
        assert decay.at(1) == pytest.approx(0)
        assert decay.at(0.5) == pytest.approx(0.5)
    assert Decay(kind="constant").at(0.9) == 1


def test_a_triangle_rises_and_falls_to_zero():
    rates = [Decay(kind="triangle").at(progress) for progress in (0, 0.1, 0.2, 0.6, 1)]
    assert rates == pytest.approx([0, 0.5, 1, 0.5, 0])


def test_the_nearest_name_is_suggested():
    with pytest.raises(ValueError, match="did you mean cifar10"):
        find_recipe("cifar-10")
    with pytest.raises(ValueError, match="'xyz': there are digits"):
        find_recipe("xyz")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RECIPES["digits"].with_(epochs=0), "epochs must be a whole number, at least 1, got 0"),
        (lambda: RECIPES["digits"].with_(lr=-1), "lr must be positive, got -1"),
        (lambda: RECIPES["digits"].with_(selectivity=2), r"selectivity must be in \(0, 1\], got 2"),
    ],
)
def test_bad_values(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_composers_imagenet_recipe_runs_on_a_folder_of_that_layout(tmp_path, monkeypatch):
    images = torch.Generator().manual_seed(0)
    for part, count in (("train", 8), ("test", 2)):
        for name in ("n01440764", "n01443537"):
            folder = tmp_path / "imagenet" / part / name
            folder.mkdir(parents=True)
            for number in range(count):  # of different sizes and shapes, as ImageNet's are
                size = (40 + number, 33, 3)
                pixels = torch.randint(0, 256, size, generator=images, dtype=torch.uint8)
                Image.fromarray(pixels.numpy()).save(folder / f"{name}_{number}.JPEG")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    recipe = find_recipe("composer_imagenet")
    assert (recipe.model, recipe.epochs, recipe.image_size) == ("resnet50", 90, 224)
    small = recipe.with_(dataset=str(tmp_path / "imagenet"), image_size=32, batch_size=4, epochs=2)
    settings = settings_for(MethodSpec.parse("composer"), small)
    assert settings.options == {"start": 0.5, "end": 0.9, "interrupt": 2, "scale_factor": 0.5}
    assert settings_for(MethodSpec.parse("composer:interrupt=3"), small).options["interrupt"] == 3
    assert settings_for(MethodSpec.parse("sb"), small).options == {}
    records = train(settings, load_data(settings))
    # 4 batches of 4 in an epoch: the window holds all of the second one but the last, and skips every second batch.
    assert records[0]["trained"] == 16
    assert 0 < records[1]["scored"] <= 8
    assert records[1]["trained"] == 16 - records[1]["scored"] // 2
