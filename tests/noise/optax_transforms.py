"""Every transform of optax, ready to be put before or behind the noise: (name, factory) pairs.

`listed()` finds all public functions of optax and optax.contrib that return a transformation, so that
a new one in a later optax shows up as missing here.
"""

import functools
import inspect

import jax
import optax
import optax.contrib as contrib

RATE = 0.1
_ONLY_RATE = """
adabelief adagrad adam adamax adamaxw adamw adan amsgrad fromage lamb lars lion nadam nadamw noisy_sgd novograd
optimistic_adam optimistic_adam_v2 optimistic_gradient_descent radam rmsprop rprop scale_by_rprop sgd sign_sgd
signum sm3 yogi contrib.acprop contrib.ademamix contrib.adopt contrib.galore contrib.madgrad contrib.muon
contrib.scale_by_madgrad contrib.simplified_ademamix contrib.sophia
""".split()  # noqa: SIM905 - a table
_NO_ARGUMENT = """
adadelta adafactor centralize identity keep_params_nonnegative lbfgs
normalize_by_update_norm polyak_sgd scale_by_adadelta scale_by_adam scale_by_adamax scale_by_adan scale_by_amsgrad
scale_by_belief scale_by_distance_over_gradients scale_by_lbfgs scale_by_lion scale_by_novograd
scale_by_optimistic_gradient scale_by_param_block_norm scale_by_param_block_rms scale_by_polyak scale_by_radam
scale_by_rms scale_by_rss scale_by_sign scale_by_sm3 scale_by_stddev scale_by_trust_ratio scale_by_yogi set_to_zero
zero_nans contrib.cocob contrib.dadapt_adamw contrib.momo contrib.momo_adam contrib.normalize contrib.prodigy
contrib.reduce_on_plateau contrib.scale_by_acprop contrib.scale_by_ademamix contrib.scale_by_adopt
contrib.scale_by_cocob contrib.scale_by_galore contrib.scale_by_muon contrib.scale_by_simplified_ademamix
contrib.schedule_free_adamw contrib.schedule_free_sgd
""".split()  # noqa: SIM905 - a table


def _every(tree):
    return jax.tree.map(lambda _: True, tree)


def _sgd():
    return optax.sgd(RATE)


_BY_HAND = {
    "adaptive_grad_clip": lambda: optax.adaptive_grad_clip(0.01),
    "add_decayed_weights": lambda: optax.add_decayed_weights(0.1),
    "apply_every": lambda: optax.apply_every(2),
    "add_noise": lambda: optax.add_noise(1.0, 0.55, seed=0),
    "apply_if_finite": lambda: optax.apply_if_finite(_sgd(), 3),
    "chain": lambda: optax.chain(_sgd(), _sgd()),
    "clip": lambda: optax.clip(0.5),
    "clip_by_block_rms": lambda: optax.clip_by_block_rms(0.5),
    "clip_by_global_norm": lambda: optax.clip_by_global_norm(0.5),
    "conditionally_mask": lambda: optax.conditionally_mask(_sgd(), lambda count: count >= 0),
    "conditionally_transform": lambda: optax.conditionally_transform(
        _sgd(), lambda count: count >= 0
    ),
    "ema": lambda: optax.ema(0.9),
    "flatten": lambda: optax.flatten(_sgd()),
    "freeze": lambda: optax.freeze(_every),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.sgd)(RATE),
    "inject_stateful_hyperparams": lambda: optax.inject_stateful_hyperparams(optax.sgd)(RATE),
    "lookahead": lambda: optax.lookahead(_sgd(), 3, 0.5),
    "masked": lambda: optax.masked(_sgd(), _every),
    "measure_with_ema": lambda: optax.measure_with_ema(optax.tree.norm, 0.9),
    "multi_transform": lambda: optax.multi_transform({True: _sgd()}, _every),
    "named_chain": lambda: optax.named_chain(("one", _sgd())),
    "partition": lambda: optax.partition({True: _sgd()}, _every),
    "scale": lambda: optax.scale(0.5),
    "scale_by_backtracking_linesearch": lambda: optax.scale_by_backtracking_linesearch(3),
    "scale_by_learning_rate": lambda: optax.scale_by_learning_rate(RATE),
    "scale_by_schedule": lambda: optax.scale_by_schedule(lambda count: 0.5),
    "scale_by_zoom_linesearch": lambda: optax.scale_by_zoom_linesearch(3),
    "selective_transform": lambda: optax.selective_transform(
        _sgd(), freeze_mask=lambda tree: jax.tree.map(lambda _: False, tree)
    ),
    "snapshot": lambda: optax.snapshot("norm", lambda updates, *_, **__: optax.tree.norm(updates)),
    "stateless": lambda: optax.stateless(lambda u, _: jax.tree.map(lambda x: 2 * x, u)),
    "stateless_with_tree_map": lambda: optax.stateless_with_tree_map(lambda u, _: 2 * u),
    "trace": lambda: optax.trace(0.9),
    "with_extra_args_support": lambda: optax.with_extra_args_support(_sgd()),
    "contrib.differentially_private_aggregate": lambda: contrib.differentially_private_aggregate(
        1.0, 1.0, key=jax.random.key(0)
    ),
    "contrib.dpsgd": lambda: contrib.dpsgd(RATE, 1.0, 1.0, seed=0),
    "contrib.mechanize": lambda: contrib.mechanize(_sgd()),
    "contrib.sam": lambda: contrib.sam(_sgd(), _sgd()),
    "contrib.schedule_free": lambda: contrib.schedule_free(_sgd(), RATE),
    "contrib.split_real_and_imaginary": lambda: contrib.split_real_and_imaginary(_sgd()),
    # Not found by its annotation: a class.
    "MultiSteps": lambda: optax.MultiSteps(_sgd(), 2).gradient_transformation(),
}


def _function(name):
    return getattr(contrib, name.removeprefix("contrib.")) if "." in name else getattr(optax, name)


TRANSFORMS = (
    {name: functools.partial(_function(name), RATE) for name in _ONLY_RATE}
    | {name: _function(name) for name in _NO_ARGUMENT}
    | _BY_HAND
)


def listed():
    """Returns the names of all public functions of optax that return a transformation."""
    names = set()
    for prefix, module in (("", optax), ("contrib.", contrib)):
        for name, value in vars(module).items():
            if name.startswith("_") or not inspect.isfunction(value):
                continue
            if "GradientTransformation" in str(inspect.signature(value).return_annotation):
                names.add(prefix + name)
    return names
