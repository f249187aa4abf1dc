"""Networks as methods of the comparison."""

import numpy as np
import pytest

pytest.importorskip("torch")

from edgemerge.comparison import networks
from edgemerge.comparison.methods import measure
from edgemerge.paper import backprop
from edgemerge.paper.hyperparameters import Network
from tests.comparison.test_methods import ROWS, tiny

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setitem(networks.SIZES, "tiny", Network((4,), batch=8, epochs=10))


@pytest.mark.parametrize("method", networks.NETWORK_METHODS)
def test_every_network_gives_scores_and_counts_its_bytes(method):
    row = measure(networks.NETWORK_METHODS[method], tiny(), 0, {})
    weights = 4 * ((6 + 1) * 4 + (4 + 1) * 6)
    expected = {
        networks.POOLED_NET: 4 * ROWS * 6,
        networks.SENT_ONCE: weights,
        networks.AVERAGED: 50 * weights,
    }
    assert row["bytes"] == expected[method]
    assert row["auc"] > 0.5


def test_the_lowest_loss_of_all_networks_counts():
    fleet = tiny()
    (view,), _ = networks.sent_once(fleet, 3)
    each = [
        backprop.losses(backprop.train(networks.SIZES["tiny"], [rows], 3 + i), fleet.test)
        for i, rows in enumerate(fleet.learnt)
    ]
    assert np.array_equal(view.scores, np.minimum(*each))
