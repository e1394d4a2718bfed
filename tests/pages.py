"""The pages of the docs, and their code blocks.

A test runs each page from top to bottom, as a reader would. What each language means there:

| block | what is done with it |
| --- | --- |
| python | run, all blocks of a page in one namespace |
| py | Python for frameworks that need not be installed: see sampler/test_other_frameworks.py |
| diff | its new side is run as python; its old side must be Python too |
| sh | each command is run at the smallest size, or checked: see `shell` in test_pages |
| toml, json | parsed |
| text, bibtex | nothing: for output, pictures, and what cannot run on the machine of the tests |

What a page takes for granted is `GRANTED`: the reader's own data and model. What it needs besides stands in a comment
that is not shown, `<!-- python ... -->`, and is run like the other blocks. After the page of a method, `TRAIN` trains
with it.
"""

import re
import shlex
import textwrap
from dataclasses import dataclass

from PIL import Image

from selective_backprop_lab.data.datasets import load_images
from selective_backprop_lab.runs.recipes import RECIPES
from tests.processes import ROOT

DOCS = ROOT / "docs"
WRITTEN = DOCS / "reference" / "cli.md"  # by tools/cli_page.py, so it may be there or not
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "AGENTS.md", *sorted({*DOCS.rglob("*.md")} - {WRITTEN})]
SELF_CONTAINED = ("README.md", "docs/index.md", "docs/quickstart.md")
"""Pages that take nothing for granted, because readers copy them as a whole."""
GRANTED = """
import torch

import selective_backprop as sb

torch.manual_seed(0)
inputs = torch.randn(512, 20)
targets = (inputs @ torch.randn(20, 5)).argmax(dim=1)
data = torch.utils.data.TensorDataset(inputs, targets)
train_loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
model, loss_fn, epochs = torch.nn.Linear(20, 5), torch.nn.CrossEntropyLoss(), 3
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
"""
TRAIN = """
loader = sb.SelectiveLoader(train_loader, model, loss_fn, method, num_epochs=3)
for epoch in range(3):
    for inputs, targets in loader:
        loader.loss(model(inputs), targets).backward()
assert loader.progress == 1 and loader.stats.trained > 0
"""
_BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```$|^<!-- python\n(?P<hidden>.*?)^-->$",
    re.DOTALL | re.MULTILINE,
)

# Networks and lengths at which the commands of a page take seconds.
_NETWORKS = {
    "resnet18": "small_cnn",
    "resnet20": "small_resnet",
    "torchvision:densenet121": "small_resnet",
    "torchvision:mobilenet_v2": "small_cnn",
    "torchvision:googlenet": "small_resnet",
}
_TRAIN = ("compare", "diet", "sweep", "train")
_DROPPED = ("--recipe", "--data-dir", "--epochs", "--seeds", "--seconds")
_LENGTHS = {
    "advise": ["--seconds", "0.1"],
    "compare": ["--epochs", "2", "--seeds", "1"],
    "demo": ["--epochs", "1,2", "--seeds", "1"],
    "diet score": ["--epochs", "1", "--seeds", "1"],
    "sweep": ["--epochs", "1"],
    "train": ["--epochs", "1"],
}


@dataclass(frozen=True)
class Block:
    """A code block of a page. language is "python" also for blocks that are not shown."""

    language: str
    code: str
    line: int


def blocks(text):
    """All code blocks of a page, in order."""
    found = []
    for match in _BLOCK.finditer(text):
        hidden = match["hidden"] is not None
        code = match["hidden"] if hidden else textwrap.dedent(match["code"])
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block("python" if hidden else match["language"], code, line))
    return found


def sides(diff):
    """The old and the new side of a diff."""
    lines = diff.splitlines()
    return tuple("\n".join(line[1:] for line in lines if not line.startswith(other)) for other in "+-")


def commands(shell):
    """The commands of a shell block as lists of words, without comments."""
    lines = shell.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def smallest(words, images=None):
    """The same command on digits, for an epoch or two, with two values of each setting.

    images: a data set for commands that train, instead of all digits.
    """
    name = " ".join(words[:2]) if words[0] == "diet" else words[0]
    kept = []
    for option, word in zip(["", *words], words, strict=False):
        if word in _DROPPED or option in _DROPPED:
            assert option != "--recipe" or word in RECIPES
            continue
        if option == "--vary":
            setting, _, values = word.partition("=")
            word = f"{setting}={','.join(_NETWORKS.get(value, value) for value in values.split(',')[:2])}"
        kept.append(_NETWORKS.get(word, word))
    if images is not None and words[0] in _TRAIN and "--dataset" not in words:
        kept += ["--dataset", str(images)]
    return [*kept, *_LENGTHS.get(name, [])]


def write_images(folder, *, train=96, test=32):
    """Write some of the digits as a data set of its own, on which an epoch takes no time."""
    digits = load_images("digits")
    for split, images, labels, count in (
        ("train", digits.train_images, digits.train_labels, train),
        ("test", digits.test_images, digits.test_labels, test),
    ):
        for number, (image, label) in enumerate(zip(images[:count], labels[:count], strict=True)):
            place = folder / split / str(int(label))
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0].numpy()).save(place / f"{number}.png")
