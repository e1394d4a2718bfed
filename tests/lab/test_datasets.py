import dataclasses
import io
import json
import os
import re
import shutil
import sys

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

import selective_backprop as sb
from selective_backprop.testing import global_random_states, same
from selective_backprop_lab.data.datasets import (
    NAMES,
    ImageDataset,
    ImageSet,
    flip_labels,
    load_images,
    split_validation,
)
from selective_backprop_lab.runs.recipes import find_recipe
from selective_backprop_lab.runs.settings import Settings
from selective_backprop_lab.runs.training import load_data

HUB_COLUMNS = {"cifar10": ("img", "label"), "cifar100": ("img", "fine_label")}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SELECTIVE_BACKPROP_DATA", raising=False)


def random_pixels(size, shape=(6, 5, 3), seed=0):
    return np.random.default_rng(seed).integers(0, 256, (size, *shape), dtype=np.uint8)


def encoded(pixels, kind="PNG"):
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def write_parquet(path, images, labels, *, columns=("image", "label"), classes=("cat", "dog", "eel"), metadata=True):
    """The layout of the Hub: encoded images as {bytes, path}, labels, features in the metadata."""
    path.parent.mkdir(parents=True, exist_ok=True)
    features = {columns[0]: {"_type": "Image"}, columns[1]: {"names": list(classes), "_type": "ClassLabel"}}
    cells = pa.array(
        [{"bytes": x if isinstance(x, bytes) else encoded(x), "path": None} for x in images],
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    )
    table = pa.table({columns[0]: cells, columns[1]: pa.array(labels)})
    if metadata:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=4)


def write_set(folder, train=None, test=None, **options):
    train, test = random_pixels(10) if train is None else train, random_pixels(4, seed=1) if test is None else test
    for part, images in (("train", train), ("test", test)):
        write_parquet(folder / f"{part}.parquet", images, [i % 3 for i in range(len(images))], **options)
    return folder


def write_folders(folder, sizes=((6, 5),), mode="RGB"):
    for part, count in (("train", 8), ("test", 4)):
        for number in range(count):
            name = folder / part / ("ant", "bee")[number % 2] / f"{number}.png"
            name.parent.mkdir(parents=True, exist_ok=True)
            pixels = random_pixels(1, (*sizes[number % len(sizes)], 3), seed=number)[0]
            Image.fromarray(pixels).convert(mode).save(name)
    return folder


def channels_first(pixels):
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


# ---- digits


def test_digits_are_those_of_scikit_learn_split_once():
    from sklearn.datasets import load_digits

    before = global_random_states()
    digits, again = load_images(), load_images("digits", image_size=8)
    assert same(before, global_random_states())
    assert (len(digits.train_labels), len(digits.test_labels)) == (1437, 360)
    assert digits.classes == tuple("0123456789")
    assert torch.equal(digits.train_images, again.train_images)

    def rows(images, labels):
        return sorted((*image, label) for image, label in zip(images.tolist(), labels.tolist(), strict=True))

    images = torch.cat([digits.train_images, digits.test_images]).flatten(1)
    labels = torch.cat([digits.train_labels, digits.test_labels])
    data = load_digits()
    assert rows((images.double() * 16 / 255).round().int(), labels) == rows(
        torch.tensor(data.data).int(), torch.tensor(data.target)
    )
    assert (int(images.min()), int(images.max())) == (0, 255)


# ---- parquet


@pytest.mark.parametrize("by_variable", [True, False])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("digits", "wordnet", "imagenet")])
def test_named_sets_are_read_from_data_dir_to_the_bit(tmp_path, monkeypatch, name, by_variable):
    write_set(tmp_path / "data" / name, columns=HUB_COLUMNS.get(name, ("image", "label")))
    if by_variable:
        monkeypatch.setenv("SELECTIVE_BACKPROP_DATA", str(tmp_path / "data"))
    images = load_images(name, data_dir=None if by_variable else tmp_path / "data")
    assert (images.name, images.classes, images.num_classes) == (name, ("cat", "dog", "eel"), 3)
    assert images.image_shape == (3, 6, 5)
    assert torch.equal(images.train_images, channels_first(random_pixels(10)))
    assert torch.equal(images.test_images, channels_first(random_pixels(4, seed=1)))
    assert images.train_labels.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert images.train_labels.dtype == torch.int64


def test_imagenet_is_resized(tmp_path):
    train = [random_pixels(1, (8, 6, 3))[0], random_pixels(1, (5, 9))[0]]  # one of them grey
    write_set(tmp_path / "imagenet", train)
    with pytest.raises(ValueError, match="--image-size"):
        load_images("imagenet", data_dir=tmp_path)
    images = load_images("imagenet", data_dir=tmp_path, image_size=4)
    assert images.image_shape == (3, 4, 4)
    for got, pixels in zip(images.train_images, train, strict=True):
        wanted = np.asarray(Image.fromarray(pixels).convert("RGB").resize((4, 4), Image.Resampling.BILINEAR))
        assert torch.equal(got, torch.tensor(wanted).permute(2, 0, 1))


def test_a_folder_of_parquet_without_metadata(tmp_path):
    folder = write_set(tmp_path / "mine", metadata=False)
    images = load_images(folder)
    assert (images.name, images.classes) == ("mine", ("0", "1", "2"))
    assert torch.equal(images.train_images, channels_first(random_pixels(10)))


def test_grey_images_have_one_channel(tmp_path):
    pixels = random_pixels(4, (6, 5))
    images = load_images(write_set(tmp_path / "grey", pixels, pixels))
    assert torch.equal(images.train_images, torch.from_numpy(pixels)[:, None])


# ---- the Hub


# ---- image folders


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1), ("1", 1), ("P", 3), ("RGBA", 3)])
def test_image_folders(tmp_path, mode, channels):
    folder = write_folders(tmp_path / "insects", mode=mode)
    (folder / "train" / "ant" / ".hidden").write_text("no image")
    images = load_images(str(folder))
    assert (images.name, images.classes, images.image_shape) == ("insects", ("ant", "bee"), (channels, 6, 5))
    assert images.train_labels.tolist() == [0] * 4 + [1] * 4
    first = Image.open(folder / "train" / "bee" / "1.png").convert("L" if channels == 1 else "RGB")
    assert np.array_equal(images.train_images[4].permute(1, 2, 0).squeeze(), np.asarray(first))


def test_a_class_without_test_images_keeps_the_others_in_place(tmp_path):
    write_folders(tmp_path / "images")
    first = min((tmp_path / "images" / "test").iterdir())
    shutil.rmtree(first)
    found = load_images(tmp_path / "images", cache_dir=tmp_path / "cache")
    assert first.name in found.classes and found.test_labels.min() == 1


# ---- the cache


def test_a_second_load_does_not_decode_again(tmp_path, monkeypatch):
    folder, cache = write_set(tmp_path / "mine"), tmp_path / "elsewhere"
    first = load_images(folder, cache_dir=cache)
    (decoded,) = cache.glob("[!.]*")
    assert decoded.name.startswith("mine-")
    monkeypatch.setattr(Image, "open", None)
    monkeypatch.setattr(datasets, "load_dataset", None)
    second = load_images(folder, cache_dir=cache)
    assert torch.equal(first.train_images, second.train_images)
    assert not (tmp_path / "cache").exists()
    assert np.load(decoded / "train_images.npy", mmap_mode="r").shape == (10, 3, 6, 5)


def test_changed_files_and_other_sizes_are_decoded_anew(tmp_path):
    folder = write_set(tmp_path / "mine")
    load_images(folder)
    assert load_images(folder, image_size=4).image_shape == (3, 4, 4)
    write_set(folder, random_pixels(11))
    assert len(load_images(folder).train_labels) == 11
    os.utime(folder / "train.parquet", ns=(0, 0))  # as if written anew with the same size
    load_images(folder)
    assert len(list((tmp_path / "cache" / "selective_backprop").glob("[!.]*"))) == 4


def test_an_error_leaves_nothing_behind(tmp_path):
    folder = write_set(tmp_path / "mine", [*random_pixels(5), b"no image"])
    with pytest.raises(ValueError, match=r"image 5 of .*train\.parquet cannot be decoded"):
        load_images(folder)
    assert list((tmp_path / "cache" / "selective_backprop").glob("[!.]*")) == []


# ---- what cannot be loaded


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar_10", "there is no data set or folder 'cifar_10': did you mean cifar10?"),
        ("fashionmnist", "did you mean fashion_mnist?"),
        ("zzz", "folder 'zzz': there are digits, wordnet, mnist, "),
        ("./no/such/folder", "there is no data set or folder './no/such/folder': there are digits, "),
    ],
)
def test_unknown_names(name, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        load_images(name)


@pytest.mark.parametrize("write", [write_set, write_folders])
def test_without_a_part_to_test_on_a_part_of_the_training_data_can_be(tmp_path, write):
    folder = write(tmp_path / "mine")
    whole = load_images(folder)
    shutil.rmtree(folder / "test", ignore_errors=True)
    (folder / "test.parquet").unlink(missing_ok=True)
    images = load_images(folder)
    assert torch.equal(images.train_images, whole.train_images) and images.test_images.shape == (0, 3, 6, 5)
    settings = Settings(recipe=find_recipe("digits").with_(dataset=str(folder)), method="traditional", selectivity=1)
    with pytest.raises(ValueError, match="--validation"):
        load_data(settings)
    split = load_data(dataclasses.replace(settings, validation=0.25))
    assert (len(split.train_labels), len(split.test_labels)) in ((8, 2), (6, 2))


def test_missing_files(tmp_path):
    wanted = "must hold train.parquet and test.parquet, or the folders train/<class> and test/<class> with images"
    with pytest.raises(FileNotFoundError, match=wanted):
        load_images(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"/no/such.*\$SELECTIVE_BACKPROP_DATA"):
        load_images("svhn", data_dir="/no/such")


@pytest.mark.parametrize("left", [0, 0.5])
def test_parquet_cut_short(tmp_path, left):
    folder = write_set(tmp_path / "mine")
    path = folder / "test.parquet"
    os.truncate(path, int(left * path.stat().st_size) if left < 1 else left)
    with pytest.raises(ValueError, match=r"mine/test\.parquet cannot be read as parquet"):
        load_images(folder)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (
            lambda folder: write_set(folder, test=random_pixels(4, (7, 5, 3))),
            "such as 5x6 and 5x7: pass --image-size",
        ),
        (
            lambda folder: write_set(folder, test=random_pixels(4, (6, 5))),
            "all grey or all in colour",
        ),
        (
            lambda folder: write_set(folder, random_pixels(4, (6, 5)).astype(np.uint16)),
            "I;16",
        ),
        (lambda folder: write_set(folder, test=[]), r"test\.parquet"),
        (
            lambda folder: write_set(folder, classes=("cat", "dog")),
            r"in \[0, 2\), got 2",
        ),
        (
            lambda folder: write_parquet(write_set(folder) / "test.parquet", random_pixels(2), [0, -1]),
            r"in \[0, 3\), got -1",
        ),
        (
            lambda folder: write_parquet(write_set(folder) / "test.parquet", random_pixels(2), [0, None]),
            r"test\.parquet: .*got None",
        ),
        (
            lambda folder: write_parquet(write_set(folder) / "test.parquet", random_pixels(2), [0, 1], classes="ab"),
            "differ in classes",
        ),
        (
            lambda folder: write_set(folder, columns=("picture", "label")),
            r"needs a column image or img and a column label or fine_label, it has picture, label",
        ),
        (
            lambda folder: (write_folders(folder) / "test/cow").mkdir() or (folder / "test/cow/1.png").touch(),
            "cow",
        ),
        (
            lambda folder: (write_folders(folder) / "train/ant/0.png").write_text("x"),
            r"train cannot be decoded.*ant/0\.png",
        ),
    ],
)
def test_wrong_content(tmp_path, write, message):
    write(tmp_path / "mine")
    with pytest.raises(ValueError, match=message):
        load_images(tmp_path / "mine")


@pytest.mark.parametrize(
    ("module", "name"), [("sklearn.datasets", "digits"), ("datasets", "mnist"), ("PIL.Image", "insects")]
)
def test_a_missing_extra_names_its_pip_line(tmp_path, monkeypatch, module, name):
    write_set(tmp_path / "mnist")
    write_folders(tmp_path / "insects")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"{module}.*: pip install 'selective-backprop\[lab\]'"):
        load_images(name, data_dir=tmp_path)


# ---- image sets


def make_set(train=(10, 1, 2, 2), test=(5, 1, 2, 2), labels=None, classes=("a", "b")):
    images = [torch.randint(256, shape, dtype=torch.uint8) for shape in (train, test)]
    train_labels = torch.arange(train[0]) % 2 if labels is None else labels
    return ImageSet("mine", images[0], train_labels, images[1], torch.arange(test[0]) % 2, classes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": (0, 1, 2, 2)}, "no images to train on"),
        ({"test": (5, 2, 2)}, r"got torch.uint8 \(5, 2, 2\)"),
        ({"test": (5, 3, 2, 2)}, r"must have the same shape, got \(1, 2, 2\) and \(3, 2, 2\)"),
        ({"labels": torch.arange(9) % 2}, r"10 images, got torch.int64 \(9,\)"),
        ({"labels": torch.rand(10)}, r"got torch.float32 \(10,\)"),
        ({"classes": ("a",)}, r"in \[0, 1\), got 1"),
    ],
)
def test_wrong_sets(options, message):
    with pytest.raises(ValueError, match=message):
        make_set(**options)


def test_validation_is_held_out_of_the_training_set():
    images = make_set(train=(100, 3, 4, 4), test=(5, 3, 4, 4))
    before = global_random_states()
    parts, again, other = (split_validation(images, 0.2, seed=seed) for seed in (1, 1, 2))
    assert same(before, global_random_states())
    assert (len(parts.train_labels), len(parts.test_labels), parts.classes) == (80, 20, images.classes)
    rows = torch.cat([parts.train_images, parts.test_images]).flatten(1).tolist()
    assert sorted(rows) == sorted(images.train_images.flatten(1).tolist())
    place = {tuple(row): i for i, row in enumerate(images.train_images.flatten(1).tolist())}
    for part, labels in ((parts.train_images, parts.train_labels), (parts.test_images, parts.test_labels)):
        ids = [place[tuple(row)] for row in part.flatten(1).tolist()]
        assert ids == sorted(ids)
        assert torch.equal(images.train_labels[ids], labels)
    assert torch.equal(parts.test_images, again.test_images)
    assert not torch.equal(parts.test_images, other.test_images)


# ---- wrong labels


@pytest.mark.parametrize("fraction", [0.1, 0.2556, 0.5])
def test_exactly_the_fraction_is_flipped_and_the_input_stays(fraction):
    labels = torch.arange(1000) % 7
    given, before = labels.clone(), global_random_states()
    new, flipped = flip_labels(labels, fraction, 7, seed=3)
    assert same(before, global_random_states())
    assert torch.equal(labels, given)
    assert int(flipped.sum()) == round(fraction * 1000)
    assert torch.equal(new != labels, flipped)
    assert torch.equal(flip_labels(labels, fraction, 7, seed=3)[0], new)
    assert not torch.equal(flip_labels(labels, fraction, 7, seed=4)[1], flipped)


# ---- batches


def numbered(count=50):
    """Images that tell their id."""
    ids = torch.arange(count)
    return ImageDataset(ids.to(torch.uint8).view(-1, 1, 1, 1).repeat(1, 1, 2, 2), ids % 10)


def test_a_batch_is_what_a_loop_over_examples_makes():
    dataset = numbered()
    assert len(dataset) == 50
    slow = torch.utils.data.default_collate([dataset[i] for i in (3, 49, 3, 0)])
    fast = ImageDataset.collate(dataset.__getitems__([3, 49, 3, 0]))
    assert same(list(fast), slow)
    assert (fast[0].dtype, fast[1].dtype) == (torch.uint8, torch.int64)


@pytest.mark.parametrize("workers", [0])
@pytest.mark.parametrize(
    "method",
    [sb.selective_backprop(0.5), sb.stale_selective_backprop(0.5, every=2)],
    ids=lambda m: m.name,
)
def test_ids_match_the_images_in_a_selective_loader(method, workers, monkeypatch):
    monkeypatch.setattr(ImageDataset, "__getitem__", None)  # batches only
    options = {"num_workers": workers, "multiprocessing_context": "fork"} if workers else {}
    train_loader = DataLoader(numbered(), 8, shuffle=True, collate_fn=ImageDataset.collate, **options)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 10))
    loader = sb.SelectiveLoader(
        train_loader, model, nn.CrossEntropyLoss(), method, num_epochs=3, forward=lambda m, b: (m(b[0].float()), b[1])
    )
    seen = set()
    for _ in range(3):
        for images, labels in loader:
            ids = loader.batch.ids
            assert images.dtype == torch.uint8
            assert torch.equal(images[:, 0, 0, 0].long(), ids)
            assert torch.equal(labels, ids % 10)
            loader.loss(model(images.float()), labels).backward()
            seen.update(ids.tolist())
    assert len(seen) > 25


def test_a_test_part_may_lack_a_class(tmp_path):
    """Labels are those of the training part's folders, whatever number the test part alone would give them."""
    write_folders(tmp_path / "set")
    for image in (tmp_path / "set" / "test" / "ant").iterdir():
        image.unlink()
    (tmp_path / "set" / "test" / "ant").rmdir()
    whole = load_images(str(tmp_path / "set"))
    assert whole.classes[0] == "ant" and 0 in whole.train_labels and whole.test_labels.min() > 0
