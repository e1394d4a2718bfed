"""Losses of different ages, compared fairly: against a slow reference, at the limits, and in a run."""

import numpy as np
import pytest
import torch

import selective_backprop as sb
from selective_backprop.scorers.ages import AgeCorrection
from tests.helpers import make_loader, make_model, train


def some_losses(seed=0):
    """300 losses that were recorded in the epochs 0, 2 and 3, smaller the later."""
    generator = torch.Generator().manual_seed(seed)
    epochs = torch.tensor([0, 2, 3])[torch.randint(3, (300,), generator=generator)].to(torch.int32)
    return torch.rand(300, generator=generator) ** 3 * 2.0**-epochs, epochs


def test_mean_scales_each_loss_by_the_means_of_two_epochs():
    losses, epochs = some_losses()
    corrected = AgeCorrection("mean")(losses, epochs)
    for epoch in (0, 2, 3):
        of = epochs == epoch
        assert corrected[of].tolist() == pytest.approx(
            (losses[of] * losses[epochs == 3].mean() / losses[of].mean()).tolist(), rel=1e-5
        )
    assert torch.equal(corrected[epochs == 3], losses[epochs == 3])


def test_mean_shifts_negative_losses():
    losses, epochs = torch.tensor([-1.0, -3.0, 2.0, 4.0]), torch.tensor([0, 0, 5, 5], dtype=torch.int32)
    assert AgeCorrection("mean")(losses, epochs).tolist() == [4, 2, 2, 4]


def test_quantile_gives_the_loss_of_the_same_rank_in_the_latest_epoch():
    losses, epochs = some_losses()
    corrected = AgeCorrection("quantile")(losses, epochs)
    latest = losses[epochs == 3].double().numpy()
    for epoch in (0, 2):
        own = losses[epochs == epoch].double().numpy()
        ranks = np.interp(own, np.sort(own), np.linspace(0, 1, len(own)))
        expected = np.quantile(latest, ranks)
        # 257 points of about 100 losses: the interpolation between them is nearly that between the losses.
        assert np.abs(corrected[epochs == epoch].numpy() - expected).max() < 0.01 * latest.max()
    assert torch.equal(corrected[epochs == 3], losses[epochs == 3])


@pytest.mark.parametrize("ages", ["mean", "quantile"])
def test_losses_of_one_epoch_and_unknown_losses_stay_as_they_are(ages):
    losses = torch.tensor([0.5, float("nan"), 0.0, 2.0])
    epochs = torch.tensor([4, -1, 4, 4], dtype=torch.int32)
    assert torch.equal(AgeCorrection(ages)(losses, epochs).nan_to_num(-1), losses.nan_to_num(-1))
    nothing = torch.full((2,), float("nan"))
    assert AgeCorrection(ages)(nothing, torch.full((2,), -1, dtype=torch.int32)).isnan().all()
    assert AgeCorrection(ages)(torch.empty(0), torch.empty(0, dtype=torch.int32)).numel() == 0
    equal = AgeCorrection(ages)(torch.zeros(4), torch.tensor([0, 0, 1, 1], dtype=torch.int32))
    assert equal.tolist() == [0, 0, 0, 0]


def test_an_epoch_is_summed_up_when_all_its_losses_are_there():
    """Later some of them are replaced, usually the highest. The mean of those left would be too low."""
    correct = AgeCorrection("mean")
    correct(torch.tensor([1.0, 3.0]), torch.tensor([0, 0], dtype=torch.int32))
    later = correct(torch.tensor([1.0, 1.0]), torch.tensor([0, 1], dtype=torch.int32))
    assert later.tolist() == [0.5, 1.0], "1 is half of the mean that epoch 0 had"
    resumed = AgeCorrection("mean")
    resumed.load_state_dict(correct.state_dict())
    for one in (correct, resumed):
        assert one(torch.tensor([1.0, 4.0]), torch.tensor([0, 2], dtype=torch.int32)).tolist() == [2, 4]


def test_a_run_selects_by_corrected_losses():
    """While losses fall, old ones count for less, so other examples are selected."""
    selected = {}
    for ages in ("as_recorded", "mean", "quantile"):
        model = make_model()
        loader = make_loader(sb.ledger_backprop(0.3, ages=ages, max_age=None), model=model, num_epochs=6)
        train(loader, model, 6)
        selected[ages] = loader.ledger.selected.clone()
        assert loader.stats.selectivity == pytest.approx(1 / 6 + 0.3 * 5 / 6, abs=0.06)
    assert not torch.equal(selected["mean"], selected["as_recorded"])
    assert not torch.equal(selected["quantile"], selected["as_recorded"])


def test_an_unknown_way_is_refused():
    with pytest.raises(ValueError, match="ages must be one of as_recorded, mean, quantile, got 'median'"):
        sb.ledger_backprop(ages="median")
