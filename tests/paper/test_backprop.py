"""Back-propagation: learns, can be repeated to the bit, and averages as federations do."""

import numpy as np
import pytest
import torch

from edgemerge.paper import backprop
from edgemerge.paper.backprop import (
    FederatedClient,
    average_into,
    build,
    losses,
    train,
    train_federated,
)
from edgemerge.paper.hyperparameters import NETWORKS, Network
from tests.paper.toys import toy

pytestmark = pytest.mark.slow  # PyTorch takes seconds to import

SMALL = Network((8,), batch=4, epochs=30)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    backprop.use_one_thread()
    yield
    torch.set_num_threads(before)


def readings(pattern=0):
    data = toy()
    return data.X[data.rows(data.patterns[pattern])]


def weights(net):
    return [p.detach().clone() for p in net.parameters()]


def test_a_network_is_as_the_paper_says():
    net = build(NETWORKS["har"]["BP-NN5"], 561, torch.Generator().manual_seed(0))
    kinds = [type(layer).__name__ for layer in net]
    assert kinds == ["Linear", "ReLU", "Linear", "ReLU", "Linear", "ReLU", "Linear", "Sigmoid"]
    sizes = [layer.weight.shape for layer in net if hasattr(layer, "weight")]
    assert sizes == [(128, 561), (256, 128), (128, 256), (561, 128)]


@pytest.mark.parametrize("dataset", ["har", "mnist"])
@pytest.mark.parametrize("method", ["BP-NN3", "BP-NN5"])
def test_parameters_are_counted_as_torch_counts_them(dataset, method):
    network, n = NETWORKS[dataset][method], {"har": 561, "mnist": 784}[dataset]
    net = build(network, n, torch.Generator())
    assert network.parameters(n) == sum(p.numel() for p in net.parameters())


def test_weights_start_as_glorots_and_biases_at_zero():
    net = build(SMALL, 6, torch.Generator().manual_seed(1))
    first = net[0]
    assert not first.bias.any()
    limit = (6 / (6 + 8)) ** 0.5
    assert 0.8 * limit < first.weight.abs().max() <= limit


def test_training_lowers_the_loss_of_what_was_learnt_and_not_of_the_rest():
    before = losses(build(SMALL, 6, torch.Generator().manual_seed(3)), readings()).mean()
    net = train(SMALL, [readings()], seed=3)
    assert losses(net, readings()).mean() < 0.2 * before
    assert losses(net, readings(1)).mean() > 3 * losses(net, readings()).mean()


def test_losses_are_the_mean_squares_of_what_the_network_leaves():
    net = train(SMALL, [readings()], seed=3)
    X = readings()
    out = net(torch.as_tensor(X, dtype=torch.float32)).detach().numpy()
    assert losses(net, X) == pytest.approx(((out - X) ** 2).mean(1), rel=1e-4)


def test_equal_seeds_give_equal_networks_and_others_do_not():
    one, same, other = (train(SMALL, [readings()], seed=s) for s in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(weights(one), weights(same), strict=True))
    assert not torch.equal(weights(one)[0], weights(other)[0])


def test_the_average_weighs_clients_by_their_samples():
    rng = torch.Generator().manual_seed(5)
    shared, a, b = (build(SMALL, 6, rng) for _ in range(3))
    average_into(shared, [a, b], [30, 10])
    for mean, x, y in zip(weights(shared), weights(a), weights(b), strict=True):
        assert torch.allclose(mean, 0.75 * x + 0.25 * y, atol=1e-7)


def test_all_rounds_together_are_the_epochs_of_the_network(monkeypatch):
    seen = []
    monkeypatch.setattr(backprop, "step", lambda *given: seen.append(given[-1]))
    client = FederatedClient(Network((8,), batch=4, epochs=3), readings(), 7, torch.Generator())
    for turn in range(7):
        before = len(seen)
        client.train(client.net, turn)
        assert len(seen) > before
    rows = torch.cat(seen)
    assert len(rows) == 3 * len(readings())
    assert len(rows.unique(dim=0)) == len(readings())


def test_a_client_starts_each_round_from_the_shared_network():
    rng = torch.Generator().manual_seed(5)
    client = FederatedClient(Network((8,), batch=50, epochs=1), readings(), 10, rng)
    shared = build(SMALL, 6, rng)
    client.train(shared, 0)  # no batch falls into this round
    assert all(torch.equal(a, b) for a, b in zip(weights(client.net), weights(shared), strict=True))


def test_one_client_and_one_round_is_training_in_one_place_but_for_chance():
    net = train_federated(SMALL, [readings()], rounds=1, seed=3)
    alone = train(SMALL, [readings()], seed=3)
    assert losses(net, readings()).mean() == pytest.approx(
        losses(alone, readings()).mean(), rel=0.5
    )


def test_two_clients_learn_both_patterns_without_sharing_samples():
    net = train_federated(SMALL, [readings(0), readings(1)], rounds=20, seed=3)
    untrained = build(SMALL, 6, torch.Generator().manual_seed(3))
    for pattern in (0, 1):
        X = readings(pattern)
        assert losses(net, X).mean() < 0.5 * losses(untrained, X).mean()


def test_readings_in_float64_are_taken():
    assert backprop.tensor(np.eye(2)).dtype == torch.float32
