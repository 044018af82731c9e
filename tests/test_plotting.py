"""Pictures: what is drawn is what was computed, on the private side, and can be read by everyone."""

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from scipy.stats import norm

import opake_jax.accounting as acc
from opake_jax import plotting
from opake_jax.noise import gaussian_noise
from opake_jax.random import key
from opake_jax.types import ClippedSum

CLIPPED = ClippedSum({"a": jnp.full(4, 0.5), "b": jnp.zeros(9)}, 1.0, 10.0)
DRAW = {
    "trade_off": lambda **k: plotting.trade_off(acc.gaussian(1.0), **k),
    "epsilon_over_steps": lambda **k: plotting.epsilon_over_steps(
        {"sigma 4": acc.gaussian(4.0), "sigma 8": acc.gaussian(8.0)}, 10, 1e-5, **k
    ),
    "epsilon_against_noise": lambda **k: plotting.epsilon_against_noise(
        [0.8, 1.0], [0.01, 0.02], num_steps=1000, delta=1e-5, **k
    ),
    "noise_to_signal": lambda **k: plotting.noise_to_signal(CLIPPED, 2.0, **k),
}


def lines(figure):
    (axes,) = figure.axes
    return axes.lines


@pytest.fixture(scope="module", params=DRAW)
def drawn(request):
    return DRAW[request.param]()


def test_a_picture_saves_as_png_and_svg(drawn, tmp_path):
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        path = tmp_path / f"picture{suffix}"
        drawn.savefig(path)
        assert path.read_bytes().startswith(start)


def test_every_axis_says_what_it_shows(drawn):
    (axes,) = drawn.axes
    assert axes.get_xlabel()
    assert axes.get_ylabel() or len(axes.get_yticklabels()) == 2  # layers are named one by one


@pytest.mark.parametrize("name", ["trade_off", "noise_to_signal"])
def test_given_axes_are_drawn_into(name):
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert DRAW[name](axes=right) is figure
    assert right.get_xlabel()
    assert not left.get_xlabel()


def test_the_trade_off_curve_lies_just_under_the_truth():
    """A Gaussian's is Phi(Phi^-1(1 - alpha) - 1) (Dong, Roth and Su 2019, definition 2.6)."""
    curve = lines(plotting.trade_off(acc.gaussian(1.0)))[1]
    alpha, beta = curve.get_data()
    truth = norm.cdf(norm.isf(alpha) - 1.0)
    assert np.all(beta <= truth + 1e-15)
    assert np.all(beta >= truth - 1e-6)


def test_epsilon_over_steps_ends_at_the_queried_epsilon():
    curve = lines(plotting.epsilon_over_steps(acc.gaussian(4.0), 10, 1e-5))[0]
    counts, epsilons = curve.get_data()
    assert (counts[0], counts[-1], epsilons[0]) == (0, 10, 0)
    assert np.all(np.diff(epsilons) > 0)
    # T steps at 4 are one at 4 / sqrt(T): the closed form.
    exact = acc.gaussian(4.0 / np.sqrt(10)).epsilon_at(1e-5)
    assert exact * (1 - 1e-9) <= epsilons[-1] <= exact * (1 + 1e-3)


def test_epsilon_against_noise_is_an_upper_bound_for_each_rate():
    figure = DRAW["epsilon_against_noise"]()
    _, epsilons = lines(figure)[0].get_data()
    # At 1.0: the lattice of tests/reference, row W1.
    assert 1.8282366 <= epsilons[1] <= 1.8282367 * (1 + 1e-3)
    assert epsilons[0] > epsilons[1]


def test_noise_to_signal_agrees_with_the_noise_that_is_added():
    """Groups with unequal shares, 1e5 coordinates each: the sample norm is within 5 / sqrt(2 n) of its
    mean but for a probability of 6e-7."""
    size = 100_000
    tree = {"a": jnp.full(size, 0.1), "b": jnp.full(size, 0.2)}
    grouped = ClippedSum(
        tree, jnp.array([1.0, 2.0]), 1.0, groups=(0, 1), shares=jnp.array([1.0, 3.0])
    )
    tx = gaussian_noise(1.5, key=key(0))
    noisy, _ = tx.update(grouped, tx.init(tree))
    figure = plotting.noise_to_signal(grouped, 1.5)
    (axes,) = figure.axes
    for bar, name in zip(axes.patches, ("a", "b"), strict=True):
        measured = np.linalg.norm(noisy[name] - tree[name]) / np.linalg.norm(tree[name])
        assert bar.get_width() == pytest.approx(float(measured), rel=5 / np.sqrt(2 * size))


def test_a_layer_without_gradient_has_no_signal_and_the_picture_is_marked_private():
    (axes,) = plotting.noise_to_signal(CLIPPED, 2.0).axes
    assert [t.get_text().strip() for t in axes.texts] == ["4", "no signal"]
    assert "private data" in axes.get_xlabel()


def test_colours_stay_apart_for_colour_blind_readers():
    """Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB. The closest pair of Okabe and
    Ito's own eight colours is 0.127 apart in linear RGB seen this way, of matplotlib's first seven 0.011."""
    vision = {
        "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    }  # fmt: skip
    rgb = np.array([to_rgb(colour) for colour in plotting._COLOURS])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    for matrix in vision.values():
        seen = np.clip(linear @ np.array(matrix).T, 0, 1)
        distance = np.linalg.norm(seen[:, None] - seen[None], axis=-1)
        np.fill_diagonal(distance, np.inf)
        assert distance.min() > 0.12


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: plotting.trade_off({}), "curves"),
        (lambda: plotting.trade_off({str(i): acc.gaussian(1.0) for i in range(8)}), "curves"),
        (lambda: plotting.epsilon_over_steps(acc.gaussian(1.0), 0, 1e-5), "num_steps"),
        (lambda: plotting.epsilon_over_steps(acc.gaussian(1.0), 5, 1.0), "delta"),
        (lambda: plotting.epsilon_against_noise([1.0], [0.1], num_steps=1, delta=1e-5), "two"),
        (lambda: plotting.epsilon_against_noise([0, 1], [0.1], num_steps=1, delta=1e-5), "noise"),
        (lambda: plotting.epsilon_against_noise([1, 2], [1.1], num_steps=1, delta=1e-5), "rate"),
        (lambda: plotting.noise_to_signal({"w": jnp.ones(2)}, 1.0), "ClippedSum"),
        (lambda: plotting.noise_to_signal(CLIPPED, 0.0), "noise_multiplier"),
    ],
)
def test_bad_input_is_named(call, word):
    with pytest.raises((ValueError, TypeError), match=word):
        call()
