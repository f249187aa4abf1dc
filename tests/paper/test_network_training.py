"""Back-propagation, step by step: as many steps as the paper's, and nothing lost between rounds."""

import numpy as np
import pytest

from edgemerge.paper.hyperparameters import LEARNING_RATE, Network
from edgemerge.paper.timing import EPOCH_PER_ROUND, EPOCHS_IN_ALL
from tests.paper.toys import toy

torch = pytest.importorskip("torch")

from edgemerge.paper import backprop, latency_steps  # noqa: E402 (they need torch)

pytestmark = pytest.mark.long  # PyTorch takes seconds to import
NETWORK = Network((8,), batch=4, epochs=3)


def readings(pattern=0, most=50):
    data = toy()
    return data.X[data.rows(data.patterns[pattern])][:most]


def fresh(seed=5):
    return backprop.build(NETWORK, 6, torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    backprop.use_one_thread()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def steps(monkeypatch):
    """The batches of all steps; nothing is learnt."""
    seen = []
    monkeypatch.setattr(backprop, "step", lambda *given: seen.append(given[-1]))
    return seen


def test_in_one_place_every_epoch_goes_through_all_samples_in_an_order_of_its_own(steps):
    backprop.train(NETWORK, [readings(0), readings(1)], seed=3)
    assert [len(batch) for batch in steps] == [4] * 75
    epochs = torch.cat(steps).split(100)
    every = torch.cat([backprop.tensor(readings(i)) for i in (0, 1)])
    for rows in epochs:
        assert sorted(rows.tolist()) == sorted(every.tolist())
    assert not torch.equal(epochs[0], every)
    assert not torch.equal(epochs[0], epochs[1])


def test_a_step_follows_the_gradient_of_its_batch_alone():
    net, batch = fresh(), backprop.tensor(readings(0, 4))
    optimiser = backprop.adam(net)
    backprop.step(net, optimiser, backprop.tensor(readings(1, 4)))
    alone = fresh()
    backprop.average_into(alone, [net], [1])
    torch.nn.functional.mse_loss(alone(batch), batch).backward()
    backprop.step(net, optimiser, batch)
    for mine, expected in zip(net.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(mine.grad, expected.grad)


def test_the_optimiser_is_adam_at_its_usual_rate():
    optimiser = backprop.adam(fresh())
    assert isinstance(optimiser, torch.optim.Adam)
    assert optimiser.defaults["lr"] == LEARNING_RATE == 0.001
    assert optimiser.defaults["betas"] == (0.9, 0.999)
    assert optimiser.defaults["weight_decay"] == 0


def test_a_client_keeps_the_memory_of_its_optimiser_between_rounds():
    client = backprop.FederatedClient(NETWORK, readings(), 5, torch.Generator().manual_seed(1))
    shared = fresh()
    for turn in range(5):
        client.train(shared, turn)
    (count,) = {int(state["step"]) for state in client.optimiser.state.values()}
    assert count == len(client.batches) == -(-50 * 3 // 4)
    assert {len(batch) for batch in client.batches[:-1]} == {4}


def test_in_every_round_all_clients_start_from_the_mean_of_the_round_before(monkeypatch):
    started, real = [], backprop.FederatedClient.train

    def watched(client, start, turn):
        started.append((turn, [p.detach().clone() for p in start.parameters()], client))
        real(client, start, turn)

    monkeypatch.setattr(backprop.FederatedClient, "train", watched)
    parts = [readings(0), readings(1, 10)]
    net = backprop.train_federated(NETWORK, parts, rounds=3, seed=3)
    assert [turn for turn, _, _ in started] == [0, 0, 1, 1, 2, 2]
    for (_, a, _), (_, b, _) in zip(started[::2], started[1::2], strict=True):
        assert all(map(torch.equal, a, b))
    two = [client.net.parameters() for _, _, client in started[-2:]]
    for mean, x, y in zip(net.parameters(), *two, strict=True):
        assert torch.allclose(mean, (50 * x + 10 * y) / 60, atol=1e-6)
        assert not torch.equal(x, y)


def test_the_computed_time_counts_the_steps_that_training_really_takes(steps):
    parts = [readings(0, 50), readings(1, 33)]
    counts = [len(X) for X in parts]
    found = latency_steps.total_times(NETWORK, counts, step=1.0, mean=0.0)
    by_name = {(step.method, step.what): time for step, time in found.items()}
    backprop.train(NETWORK, parts, seed=1)
    assert by_name["BP-NN3", EPOCHS_IN_ALL] == len(steps)
    steps.clear()
    backprop.train_federated(NETWORK, parts, rounds=50, seed=1)
    assert by_name["BP-NN3-FL", EPOCHS_IN_ALL] == len(steps)
    per_round = sum(len(backprop.tensor(X).split(NETWORK.batch)) for X in parts)
    assert by_name["BP-NN3-FL", EPOCH_PER_ROUND] == 50 * per_round


def test_the_time_of_a_round_is_that_of_loading_both_clients_and_of_one_mean(monkeypatch):
    calls = []
    monkeypatch.setattr(backprop, "average_into", lambda *given: calls.append(len(given[1])))
    monkeypatch.setattr(backprop, "step", lambda *_: None)
    backprop.train_federated(NETWORK, [readings(0), readings(1)], rounds=1, seed=1)
    really, calls[:] = sorted(calls), []
    trial = type("T", (), {"data": toy(), "split": type("S", (), {"learn": [np.arange(50)]})})
    *_, averages = latency_steps.backprop_runs(NETWORK, trial, 0)
    averages.run()
    assert sorted(calls[: len(calls) // latency_steps.AVERAGES_PER_TURN]) == really == [1, 1, 2]
