"""Predicts an income above 50,000 dollars from the census (UCI Adult) under (1, 1e-5)-DP.

Logistic regression. The idea: every range and category that turns a row into numbers is written
down here, from the census questionnaire. A mean, a maximum or a list of the categories that occur,
taken from the training rows, would be a second release of them that no accountant knows of.

python examples/adult.py            # seconds on two cores
python examples/adult.py --smoke    # a few steps, for CI
"""

import argparse
import gzip
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import opake_jax.accounting as acc
from opake_jax import dpsgd
from opake_jax.random import key

DATA_DIR = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"

# Column -> the upper ends of the bins that it is cut into, within its public range.
BINS = {
    0: (20, 23, 26, 29, 33, 37, 41, 46, 52, 60, 67),  # age, 17 to 90
    4: tuple(range(1, 16)),  # years of education, 1 to 16
    10: (0, 2_000, 3_000, 3_500, 4_500, 5_000, 7_000, 20_000),  # capital gain, up to 99,999
    11: (0, 1_500, 1_800, 2_000, 2_200, 2_400),  # capital loss, up to 4,356
    12: (15, 25, 34, 39, 40, 45, 50, 60),  # hours a week, 1 to 99
}
# Column -> its categories; an answer that is not listed ("?") is all zeros.
CATEGORIES = {
    1: "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay "
    "Never-worked",
    5: "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent "
    "Married-AF-spouse",
    6: "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
    "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving "
    "Priv-house-serv Protective-serv Armed-Forces",
    7: "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    8: "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    9: "Female Male",
}


def encode(rows: list[list[str]]) -> np.ndarray:
    """Returns one row of zeros and ones for each person, from that person's answers alone."""
    blocks = [np.ones((len(rows), 1))]
    for column, ends in BINS.items():
        values = np.array([float(row[column]) for row in rows])
        blocks.append(np.eye(len(ends) + 1)[np.searchsorted(ends, values)])
    for column, names in CATEGORIES.items():
        answers = np.array([row[column] for row in rows])
        blocks.append(answers[:, None] == np.array(names.split()))
    return np.concatenate(blocks, axis=1).astype(np.float32)


def read(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns the encoded rows and the labels (1 for an income above 50,000) of one file."""
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    rows = [line.rstrip(".").split(", ") for line in lines if line.count(",") == 14]
    return encode(rows), np.array([row[14] == ">50K" for row in rows], np.float32)


def load(data_dir: pathlib.Path) -> tuple[np.ndarray, ...]:
    """Returns features and labels for training and for the test."""
    folder = data_dir / "adult"
    if folder.is_dir():
        return *read(folder / "adult.data.gz"), *read(folder / "adult.test.gz")
    print(f"{folder} is missing: even or odd, from scikit-learn's digits, stands in for Adult")
    images, digit = load_digits(return_X_y=True)
    features = (images / 16).astype(np.float32)  # pixels have the public range 0 to 16
    x, xt, y, yt = train_test_split(features, digit % 2, train_size=1500, random_state=0)
    return x, y.astype(np.float32), xt, yt.astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=pathlib.Path, default=DATA_DIR)
    parser.add_argument("--smoke", action="store_true", help="5 steps, to see that it runs")
    parser.add_argument("--seed", type=int, help="for tests only: a seeded run protects nobody")
    args = parser.parse_args()
    root = key(args.seed)
    started = time.perf_counter()
    x, y, xt, yt = load(args.data_dir)

    plan = dpsgd.plan(
        dataset_size=len(x),
        expected_batch_size=min(2_048, len(x) // 4),
        num_steps=5 if args.smoke else 300,
        clipping_norm=1.0,
        budget=acc.epsilon_budget(1.0, delta=1e-5),
    )

    def loss_fn(weights, example):
        features, label = example
        return optax.losses.sigmoid_binary_cross_entropy(features @ weights, label)

    weights = jnp.zeros(x.shape[1])
    grad_fn = plan.clipped_grad(loss_fn)
    tx = plan.optimizer(optax.sgd(1.0, momentum=0.9), root)
    opt_state = tx.init(weights)
    data = jnp.asarray(x), jnp.asarray(y)

    @jax.jit
    def train_step(weights, opt_state, indices, mask):
        clipped, _ = grad_fn(weights, jax.tree.map(lambda a: a[indices], data), mask=mask)
        updates, opt_state = tx.update(clipped, opt_state, weights)
        return optax.apply_updates(weights, updates), opt_state

    for indices, mask in tqdm(plan.batches(root), total=plan.num_steps, unit="step"):
        weights, opt_state = train_step(weights, opt_state, indices, mask)

    print(f"test accuracy: {100 * np.mean((xt @ weights > 0) == (yt > 0)):.1f} %")
    print(plan.report())
    print(f"time: {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
