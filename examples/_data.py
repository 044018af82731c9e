"""What examples share: MNIST, from --data-dir, else scikit-learn's digits in its place; smoke runs."""

import gzip
import os
import pathlib
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

# The data lies beside the checkout, never in it.
DATA_DIR = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"


class Split(NamedTuple):
    """Images in [0, 1] of shape (N, 28, 28) and labels 0 to 9, for training and for the test."""

    x: np.ndarray
    y: np.ndarray
    xt: np.ndarray
    yt: np.ndarray


def compile_fast() -> None:
    """For smoke runs, which compile longer than they train; call it before jax is first used."""
    os.environ["XLA_FLAGS"] = (
        "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    )


def mnist(data_dir: pathlib.Path) -> Split:
    """Returns MNIST from `data_dir`/mnist; where that is missing, 1,500 small digits, and says so.

    Pixels are divided by their public maximum. A statistic of the training images would leak.
    """
    folder = data_dir / "mnist"
    if not folder.is_dir():
        print(f"{folder} is missing: scikit-learn's 1,797 digits stand in for MNIST")
        return _digits()

    def images(name: str) -> np.ndarray:
        return _idx(folder / name).astype(np.float32) / 255

    def labels(name: str) -> np.ndarray:
        return _idx(folder / name).astype(np.int32)

    return Split(
        images("train-images-idx3-ubyte.gz"),
        labels("train-labels-idx1-ubyte.gz"),
        images("t10k-images-idx3-ubyte.gz"),
        labels("t10k-labels-idx1-ubyte.gz"),
    )


def _idx(path: pathlib.Path) -> np.ndarray:
    """Returns the array of an IDX file of bytes: 2 zeros, type, rank, then big-endian sizes."""
    raw = gzip.decompress(path.read_bytes())
    rank = raw[3]
    shape = np.frombuffer(raw, ">u4", rank, offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * rank).reshape(shape)


def _digits() -> Split:
    """Returns the 8x8 digits, enlarged three times and framed to 28x28; their maximum is 16."""
    data = load_digits()
    large = np.kron(data.images / 16, np.ones((1, 3, 3))).astype(np.float32)
    large = np.pad(large, ((0, 0), (2, 2), (2, 2)))
    x, xt, y, yt = train_test_split(
        large, data.target.astype(np.int32), train_size=1500, random_state=0
    )
    return Split(x, y, xt, yt)
