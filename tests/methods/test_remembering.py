"""The ledger says so once if what it remembers is noise."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import selective_backprop as sb
from selective_backprop.scorers.remembering import MemoryCheck
from tests.helpers import Noisy, digits, make_model, train

NOISE = "the ledger remembers noise"


def warnings(caplog):
    return [record.message for record in caplog.records if NOISE in record.message]


class Pairs(Dataset):
    """The difference of a digit and another one, drawn at every access: is that one larger?"""

    def __len__(self):
        return 1500

    def __getitem__(self, index):
        (image, label), (other, larger) = digits(1500)[index], digits(1500)[int(torch.randint(1500, (1,)))]
        return other - image, int(larger > label)


@pytest.mark.parametrize("data", [Pairs(), digits(1500), Noisy(1500)], ids=["random pairs", "digits", "augmented"])
def test_a_data_set_that_draws_anew_is_told_of_once(data, caplog):
    torch.manual_seed(0)
    model = make_model()
    loader = sb.SelectiveLoader(DataLoader(data, 50, shuffle=True), model, nn.CrossEntropyLoss(), sb.ledger_backprop())
    train(loader, model, 9)
    assert len(warnings(caplog)) == isinstance(data, Pairs)


@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_losses_with_noise_are_no_noise_and_few_examples_tell_later(noise, caplog):
    draws = torch.Generator().manual_seed(0)
    for num_examples, has_loss_of_its_own in ((2000, True), (2000, False), (300, False)):
        caplog.clear()
        own, told = torch.rand(num_examples, generator=draws) * has_loss_of_its_own, []
        sampler = sb.SelectiveSampler(num_examples, sb.ledger_backprop())
        for _ in range(12):
            for ids in torch.utils.data.BatchSampler(sampler, 100, drop_last=False):
                sampler.update(own[ids] + (noise * torch.rand(len(ids), generator=draws) if noise else 0))
            told.append(len(warnings(caplog)))
            saved, sampler = sampler.state_dict(), sb.SelectiveSampler(num_examples, sb.ledger_backprop())
            sampler.load_state_dict(saved)
        if has_loss_of_its_own or not noise:  # losses that are all the same say nothing either way
            assert told[-1] == 0
        else:
            assert told[-1] == 1 and told.index(1) >= (3 if num_examples == 2000 else 6)


def test_the_share_of_one_half_that_is_above_the_median_is_compared():
    check, values = MemoryCheck(), torch.arange(10_000.0)
    check.learn(values, values[torch.randperm(10_000, generator=torch.Generator().manual_seed(0))])
    assert check.is_over and abs(check.state[0] / check.state[1]) < 0.03
    falling = MemoryCheck()
    falling.learn(values, -values)
    assert falling.is_over and falling.state[0] / falling.state[1] == pytest.approx(-1)
