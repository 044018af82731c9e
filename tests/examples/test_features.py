"""Features depend on one row alone, and the wavelets are what their formula says."""

import pathlib

import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


@pytest.fixture
def scattering(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import _scattering

    return _scattering


@pytest.fixture
def adult(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import adult

    return adult


def correlate(image, wavelet, row, column):
    """Returns the circular convolution at one pixel by its defining sum."""
    size = len(image)
    rows, columns = (row - np.arange(size)) % size, (column - np.arange(size)) % size
    return np.sum(image[rows][:, columns] * wavelet)


def test_first_order_channels_match_the_defining_sums(scattering):
    side, frame = 8, scattering.FRAME
    size = side + 2 * frame
    image = np.random.default_rng(0).random((side, side))
    framed = np.pad(image, frame)
    channels = np.asarray(scattering._scatter(side)(image[None].astype(np.float32)))[0]
    # Position (0, 1) is centred on the pixels 1.5 and 5.5.
    weight = [
        np.exp(-((np.arange(size) - frame - c) ** 2) / (2 * 1.6**2)) / (1.6 * np.sqrt(2 * np.pi))
        for c in (1.5, 5.5)
    ]
    assert channels[0, 0, 1] == pytest.approx(weight[0] @ framed @ weight[1], rel=1e-5)
    for angle in (0, 3):
        wavelet = np.fft.ifft2(scattering.morlet(size, 0, angle))
        moved = [[abs(correlate(framed, wavelet, r, c)) for c in range(size)] for r in range(size)]
        expected = weight[0] @ np.array(moved) @ weight[1]
        assert channels[1 + angle, 0, 1] == pytest.approx(expected, rel=1e-4)


def test_wavelets_have_mean_zero_and_answer_to_their_own_direction(scattering):
    size = 32
    for scale in (0, 1):
        assert abs(scattering.morlet(size, scale, 1)[0, 0]) < 1e-12
        # A wave along the rows at the wavelet's frequency: angle 0 sees it, angle 4 (90 degrees) does not.
        peak = round(0.75 * np.pi / 2**scale * size / (2 * np.pi))
        along = abs(scattering.morlet(size, scale, 0)[peak, 0])
        across = abs(scattering.morlet(size, scale, 4)[peak, 0])
        assert along > 20 * across


def test_an_image_has_the_same_features_in_any_company(scattering):
    images = np.random.default_rng(1).random((3, 8, 8)).astype(np.float32)
    together = scattering.features(images)
    alone = scattering.features(images[1:2])
    np.testing.assert_allclose(together[1:2], alone, rtol=1e-4, atol=1e-5)
    assert together.shape == (3, 81 * 4)


def test_a_person_has_the_same_features_in_any_company(adult):
    rows = [
        "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, "
        "2174, 0, 40, United-States, <=50K",
        "90, ?, 1, 10th, 6, Divorced, ?, Unmarried, Black, Female, 0, 4356, 99, Cuba, >50K",
    ]
    rows = [row.split(", ") for row in rows]
    both = adult.encode(rows)
    np.testing.assert_array_equal(both[1:], adult.encode(rows[1:]))
    # One bin in each of five ranges and the constant; six categories, of which "?" is none.
    np.testing.assert_array_equal(both.sum(1), [12, 10])
