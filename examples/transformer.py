"""Trains a small decoder on text under (3, 1e-5)-DP, then fine-tunes it by LoRA on other text.

The layers run in a scan, rematerialised, and the ghost engine clips through both. The Old Testament
trains all weights; then they are frozen, and low-rank corrections learn from the New. The texts
share no window, so each pays for its own training alone. A run of the same steps without clipping
and noise shows what privacy costs.

python examples/transformer.py            # a few minutes on two cores
python examples/transformer.py --smoke    # a few steps, for CI
"""

import argparse
import gzip
import importlib.resources
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _data import DATA_DIR, compile_fast
from flax import nnx
from tqdm import tqdm

import opake_jax.accounting as acc
from opake_jax import dpsgd
from opake_jax.clipping import Chunked, Ghost
from opake_jax.random import key, tagged

WINDOW, LAYERS, WIDTH, HEADS, RANK = 64, 3, 64, 4, 4
BATCH, STEPS, RATE = 256, 100, 1e-2
# Printable ASCII, and one symbol for everything else: no list of the characters that occur.
ALPHABET = 96
UNIT = f"one window of {WINDOW + 1} characters"


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        def linear(inputs: int, outputs: int) -> nnx.LoRALinear:
            return nnx.LoRALinear(inputs, outputs, lora_rank=RANK, rngs=rngs)

        self.norm, self.norm_up = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)
        self.qkv, self.out = linear(WIDTH, 3 * WIDTH), linear(WIDTH, WIDTH)
        self.up, self.down = linear(WIDTH, 4 * WIDTH), linear(4 * WIDTH, WIDTH)

    def __call__(self, x: jax.Array) -> jax.Array:
        qkv = self.qkv(self.norm(x)).reshape(len(x), 3, HEADS, -1)
        heads = jax.nn.dot_product_attention(qkv[:, 0], qkv[:, 1], qkv[:, 2], is_causal=True)
        x = x + self.out(heads.reshape(x.shape))
        return x + self.down(nnx.gelu(self.up(self.norm_up(x))))


class Decoder(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.tokens = nnx.Embed(ALPHABET, WIDTH, rngs=rngs)
        self.places = nnx.Embed(WINDOW, WIDTH, rngs=rngs)
        self.blocks = nnx.vmap(Block)(rngs.split(LAYERS))
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        x = self.tokens(ids) + self.places.embedding[...]
        layers = nnx.scan(
            nnx.remat(lambda x, block: block(x)), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry
        )
        return self.tokens.attend(self.norm(layers(x, self.blocks)))


def load(data_dir: pathlib.Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the windows of two texts: of each all but every 64th, and every 64th for the test."""
    path = data_dir / "text" / "kjv.txt.gz"
    if path.is_file():
        texts = gzip.decompress(path.read_bytes()).split(b"\nMatthew 1\n")
    else:
        print(f"{path} is missing: scikit-learn's descriptions of its data sets stand in for it")
        folder = importlib.resources.files("sklearn.datasets.descr")
        pages = sorted(p.read_bytes() for p in folder.iterdir() if p.name.endswith(".rst"))
        texts = [b"".join(pages[::2]), b"".join(pages[1::2])]
    codes = [np.frombuffer(t[: len(t) // (WINDOW + 1) * (WINDOW + 1)], np.uint8) for t in texts]
    windows = [np.where((c >= 32) & (c < 127), c - 31, 0).reshape(-1, WINDOW + 1) for c in codes]
    return [(w[np.arange(len(w)) % 64 != 0], w[::64]) for w in windows]


def train(loss_fn, params, windows, plan, root):
    """Returns the parameters after the plan's steps."""
    grad_fn = plan.clipped_grad(loss_fn, has_aux=True, engine=Chunked(16, engine=Ghost()))
    tx = plan.optimizer(optax.adam(RATE), root)
    opt_state = tx.init(params)

    @jax.jit
    def update(params, opt_state, clipped):
        updates, opt_state = tx.update(clipped, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    for indices, mask in tqdm(plan.batches(root), total=plan.num_steps, unit="step"):
        clipped, _ = grad_fn(params, windows[np.asarray(indices)], mask=mask)
        params, opt_state = update(params, opt_state, clipped)
    return params


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=pathlib.Path, default=DATA_DIR)
    parser.add_argument("--smoke", action="store_true", help="2 steps, to see that it runs")
    parser.add_argument("--seed", type=int, help="for tests only: a seeded run protects nobody")
    args = parser.parse_args()
    started = time.perf_counter()
    (old, old_test), (new, new_test) = load(args.data_dir)
    if args.smoke:  # one program for texts of one size
        compile_fast()
        old, old_test, new, new_test = old[:1500], old_test[:16], new[:1500], new_test[:16]
    decoder = nnx.jit(Decoder)(nnx.Rngs(tagged(key(args.seed), "init")))
    graph, lora, base = nnx.split(decoder, nnx.LoRAParam, nnx.Param)

    def loss_fn(base, lora, window):
        """Returns the mean loss of the window's characters, and the share of right guesses."""
        logits = nnx.merge(graph, lora, base, copy=True)(window[:-1])
        losses = optax.losses.softmax_cross_entropy_with_integer_labels(logits, window[1:])
        return losses.mean(), jnp.mean(logits.argmax(-1) == window[1:])

    @jax.jit
    def measure(base, lora, windows):
        return jax.lax.map(lambda window: jnp.stack(loss_fn(base, lora, window)), windows).mean(0)

    def run(name, clipping_norm, **privacy):
        """Returns the plans of base and LoRA and the last test accuracy; prints the test losses."""
        batch, steps = (16, 2) if args.smoke else (BATCH, STEPS)
        shared = {"expected_batch_size": batch, "num_steps": steps}
        shared |= {"clipping_norm": clipping_norm, "unit": UNIT, **privacy}
        plans = [dpsgd.plan(dataset_size=len(text), **shared) for text in (old, new)]
        trained = train(lambda p, w: loss_fn(p, lora, w), base, old, plans[0], key(args.seed))
        tuned = train(lambda p, w: loss_fn(trained, p, w), lora, new, plans[1], key(args.seed))
        before = measure(trained, lora, old_test)[0], measure(trained, lora, new_test)[0]
        after, accuracy = measure(trained, tuned, new_test)
        print(f"test loss, {name}: Old Testament {before[0]:.3f}, New {before[1]:.3f}", end=", ")
        print(f"New after LoRA {after:.3f} nats a character")
        return plans, accuracy

    if not args.smoke:
        run("not private", 1e6, noise_multiplier=0.0, delta=1e-5)  # a norm that none reaches
    plans, accuracy = run("private", 0.5, budget=acc.epsilon_budget(3.0, delta=1e-5))
    print(f"test accuracy: {100 * accuracy:.1f} % of next characters")
    for name, plan in zip(("Old", "New"), plans, strict=True):
        print(f"{name} Testament: {plan.report()}")
    print(f"time: {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
