import math

import pytest
import torch

from selective_backprop.testing import same
from selective_backprop_lab.data.augment import Augment, Normalise, measure_mean_std

OFF = {"padding": 0, "flip": False, "cutout": 0}


def random_images(size=64, channels=3, height=9, width=7, dtype=torch.uint8, seed=0):
    """Random images without zeros, so that blanked pixels can be recognised."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 256, (size, channels, height, width), generator=generator).to(dtype)


# ---- normalising


def test_mean_std_is_that_of_all_pixels(monkeypatch):
    monkeypatch.setattr("selective_backprop_lab.data.augment._CHUNK_VALUES", 1000)  # several chunks
    images = random_images()
    mean, std = measure_mean_std(images)
    pixels = images.double().transpose(0, 1).flatten(1) / 255
    assert mean == pytest.approx(pixels.mean(1).tolist())
    assert std == pytest.approx(pixels.std(1, correction=0).tolist())


def test_normalised_images_have_mean_0_and_std_1():
    images = random_images()
    normalise = Normalise(*measure_mean_std(images))
    out = normalise(images)
    assert out.dtype == torch.float32
    assert torch.allclose(out.mean((0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(out.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5)


# ---- augmenting: limits


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_with_all_off_the_batch_stays_as_it_is(dtype):
    images = random_images(dtype=dtype)
    assert torch.equal(Augment(**OFF)(images), images)


# ---- augmenting: a slow reference


def reference(images, padding, flip, cutout, seed):
    """Example by example, with PyTorch's padding; the draws are one example's after the other's, by kind."""
    generator = torch.Generator().manual_seed(seed)
    size, _, height, width = images.shape

    def draw(most):
        return torch.randint(most, (size, 1), generator=generator).flatten().tolist()

    tops, lefts, mirrored = draw(2 * padding + 1), draw(2 * padding + 1), draw(2 if flip else 1)
    centres = list(zip(draw(height), draw(width), strict=True)) if cutout else [None] * size
    results = []
    for image, top, left, mirror, centre in zip(images, tops, lefts, mirrored, centres, strict=True):
        padded = torch.nn.functional.pad(image.float()[None], (padding,) * 4)[0]
        result = padded[:, top : top + height, left : left + width].clone()
        if mirror:
            result = result.flip(2)
        if cutout:
            for y in range(height):
                for x in range(width):
                    inside = 0 <= y - (centre[0] - cutout // 2) < cutout and 0 <= x - (centre[1] - cutout // 2) < cutout
                    if inside:
                        result[:, y, x] = 0
        results.append(result.to(images.dtype))
    return torch.stack(results)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(
    ("padding", "flip", "cutout"), [(2, False, 0), (0, True, 0), (0, False, 4), (3, True, 5), (6, True, 1)]
)
def test_augmenting_is_the_reference(dtype, padding, flip, cutout):
    images = random_images(dtype=dtype)
    options = {"padding": padding, "flip": flip, "cutout": cutout, "seed": 5}
    assert torch.equal(Augment(**options)(images), reference(images, **options))


# ---- augmenting: chances. 4000 examples; a frequency is within five standard deviations of its chance


def within(frequency, chance, size=4000):
    return bool(((frequency - chance).abs() <= 5 * math.sqrt(chance * (1 - chance) / size)).all())


def test_every_crop_is_equally_likely():
    column_numbers = torch.arange(1.0, 10).expand(4000, 1, 9, 9)
    for images in (column_numbers, column_numbers.transpose(2, 3)):
        out = Augment(padding=2, flip=False)(images)
        centre = out[:, 0, 4, 4] - 5  # how far the crop moved
        assert within((centre[:, None] == torch.arange(-2, 3)).float().mean(0), 0.2)


def test_the_centre_of_the_hole_is_uniform_over_the_image():
    images = torch.ones(4000, 1, 6, 6)
    hole = 1 - Augment(**OFF | {"cutout": 1})(images)
    assert torch.equal(hole.sum((1, 2, 3)), torch.ones(4000))
    assert within(hole.mean((0, 1)), 1 / 36)
    cut = (Augment(**OFF | {"cutout": 4})(images) == 0).sum((1, 2, 3))
    # Along one side of 6 a hole of 4 that starts at -2 .. 3 keeps 2, 3, 4, 4, 4 or 3 of its length.
    assert within((cut == 16).float().mean(), 1 / 4)
    assert within((cut == 4).float().mean(), 1 / 36)


# ---- augmenting: randomness


def test_a_seed_gives_the_same_and_another_does_not():
    images = random_images()
    first, again, other = (Augment(cutout=3, seed=seed) for seed in (1, 1, 2))
    results = [[augment(images) for _ in range(3)] for augment in (first, again, other)]
    assert same(results[0], results[1])
    assert not torch.equal(results[0][0], results[2][0])
    assert not torch.equal(results[0][0], results[0][1])


def test_saved_loaded_and_gone_on_with(tmp_path):
    images, augment = random_images(), Augment(cutout=3, seed=3)
    augment(images)
    torch.save(augment.state_dict(), tmp_path / "augment.pt")
    wanted = [augment(images) for _ in range(2)]
    resumed = Augment(cutout=3, seed=99)
    resumed.load_state_dict(torch.load(tmp_path / "augment.pt", weights_only=True))
    assert same([resumed(images) for _ in range(2)], wanted)


@pytest.mark.gpu
def test_the_same_on_the_gpu():
    images = random_images()
    out = Augment(cutout=3)(images.cuda())
    assert out.is_cuda
    assert torch.equal(out.cpu(), Augment(cutout=3)(images))


# ---- errors


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Augment(padding=-1), "padding must be a whole number of pixels, 0 or more, got -1"),
        (lambda: Augment(cutout=1.5), "cutout must be a whole number of pixels, 0 or more, got 1.5"),
        (lambda: Normalise([0.5], [0.0]), r"std must be > 0 in every channel, got \[0.0\]"),
        (lambda: Normalise([0.5], [float("nan")]), r"std must be > 0 in every channel, got \[nan\]"),
    ],
)
def test_what_cannot_be(call, message):
    with pytest.raises(ValueError, match=message):
        call()
