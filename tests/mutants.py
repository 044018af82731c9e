"""Breaks the code in the ways that the reports describe, and sees that tests fail.

    python tests/mutants.py                 # all, about ten minutes
    python tests/mutants.py --only sum_of_devices noise_squared

Package and tests are copied to a temporary directory; each mutant changes one place there, and only the tests that
are named with it run. A mutant is killed if each of these tests fails; one that passes is printed.
`test_mutants.py` holds that every place is still there.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

REPO = pathlib.Path(__file__).parent.parent


class Mutant(NamedTuple):
    """One fault: `old` becomes `new` in `file`, and every one of `tests` (below tests/) must fail, at least for one parameter."""

    name: str
    reports: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


FUZZ, KINDS, ACCOUNTING = (
    "fuzzing/test_fuzz_",
    "reports/test_training_kinds.py::",
    "reports/test_accounting_kinds.py::",
)
REPORTS, CLIPPED = "accounting/test_reports.py::", "clipping/test_clipped_grad.py::"
MECHANISMS = "accounting/test_mechanisms.py::"
ROWS = (
    FUZZ + "clipping.py::test_whatever_the_rows_hold_each_counts_for_at_most_the_norm[vmap-float16]"
)
ENGINE = "clipping/test_engines.py::test_every_engine_computes_the_sum_of_clipped_gradients[ghost gram-{}]"

MUTANTS = (
    Mutant(
        "shuffled_as_poisson", "R01", "sampling/_epochs.py", "        return mechanism\n",
        "        return accounting.poisson(mechanism, self.batch_size / self.dataset_size)\n",
        ("sampling/test_other_samplers.py::test_shuffling_has_no_amplification_and_no_add_remove_statement",
         FUZZ + "plan.py::test_every_sampler_is_priced_as_what_it_is"),
    ),
    Mutant(
        "padding_counted", "R02", "clipping/_problem.py", "jnp.where((finite & mask)[:, None]", "jnp.where(finite[:, None]",
        (CLIPPED + "test_r02_padding_contributes_nothing_whatever_it_holds", ROWS),
    ),
    Mutant(
        "cap_not_priced", "R03", "sampling/_poisson.py", "if self.capacity >= self.dataset_size:", "if self.capacity >= 1:",
        ("dpsgd/test_plan.py::test_the_report_prices_the_sampler_that_draws_the_batches",
         "sampling/test_poisson.py::test_its_accounting_is_truncated_poisson_with_its_cap"),
    ),
    Mutant(
        "cap_keeps_the_first", "R03", "sampling/_gaps.py", "positions = lax.sort(by_priority[3][:capacity])",
        "positions = positions[:capacity]", ("sampling/test_poisson.py::test_a_cap_favours_no_index",),
    ),
    Mutant(
        "workers_draw_alike", "R04", "sampling/_parallel_poisson.py", "_threefry.fold(words, worker)", "_threefry.fold(words, 0 * worker)",
        ("sampling/test_other_samplers.py::test_workers_draw_from_distinct_streams_and_multiplicity_is_binomial",
         KINDS + "test_workers_of_any_number_share_no_draw"),
    ),
    Mutant(
        "norm_not_used", "R05", "clipping/_run.py", "spec.rule.factors(norm, limits)", "spec.rule.factors(norm, jnp.ones_like(limits))",
        (CLIPPED + "test_r05_the_clipping_norm_is_used_also_as_a_traced_argument", ROWS,
         FUZZ + "clipping.py::test_traced_norms_under_vmap_are_the_loop_and_bad_ones_are_no_release"),
    ),
    Mutant(
        "nan_row_kept", "R06", "clipping/_problem.py", "finite = jnp.all(jnp.isfinite(norm), axis=1)", "finite = jnp.ones_like(mask)",
        (CLIPPED + "test_r06_a_nonfinite_gradient_drops_out_whole_and_is_counted", ROWS),
    ),
    Mutant(
        "norms_in_half_precision", "R07", "clipping/_problem.py", "    g = gradient.astype(accumulator_dtype(gradient.dtype))\n",
        "    g = gradient\n", (ROWS,),
    ),
    Mutant(
        "half_precision_operands", "R07", "clipping/_ghost/_norms.py", "    return x.astype(accumulator_dtype(x.dtype))\n", "    return x\n",
        ("clipping/test_engines.py::test_half_precision_operands_have_float32_norms_and_sums",),
    ),
    Mutant(
        "tied_uses_apart", "R08", "clipping/_ghost/_norms.py", "parts.append(2 * columns *", "parts.append(0 * columns *",
        (ENGINE.format("rnn"),),
    ),
    Mutant(
        "tokens_as_examples", "R09", "clipping/_ghost/_norms.py",
        'parts.append(_einsum("skm,slm->skl", a, a) * _einsum("skn,sln->skl", g, g))',
        'parts.append(_einsum("skm,slm->skl", a, a) * _einsum("skn,sln->skl", g, g) * jnp.eye(a.shape[1]))',
        (ENGINE.format("rnn"),),
    ),
    Mutant(
        "mean_over_padding", "R09", "clipping/_units.py", "count = jnp.maximum(jnp.sum(real), 1).astype(values.dtype)",
        "count = jnp.asarray(len(real), values.dtype)",
        ("clipping/test_kinds.py::test_a_unit_is_clipped_as_one_and_its_padding_is_not_seen",),
    ),
    Mutant(
        "vector_loss_accepted", "R10", "clipping/_guards.py", "if value.shape != () or not", "if not",
        (CLIPPED + "test_r10_a_loss_that_is_no_scalar_is_refused", KINDS + "test_a_loss_of_any_other_shape_or_dtype_is_refused"),
    ),
    Mutant(
        "last_part_lost", "R11", "clipping/_chunked.py", "range(0, len(real), self.size)", "range(0, len(real) - self.size + 1, self.size)",
        ("test_training_reports.py::test_no_example_is_lost_when_the_microbatch_does_not_divide_the_batch",
         KINDS + "test_parts_of_any_size_lose_no_row_and_count_none_twice"),
    ),
    Mutant(
        "padding_of_a_part_counted", "R11", "clipping/_parts.py", "jnp.zeros(extra, bool)", "jnp.ones(extra, bool)",
        ("test_training_reports.py::test_no_example_is_lost_when_the_microbatch_does_not_divide_the_batch",),
    ),
    Mutant(
        "norms_with_an_axis_more", "R12", "clipping/_run.py", "norm[:, 0] if norm.shape[1] == 1 else norm", "norm",
        (CLIPPED + "test_r12_values_norms_and_aux_are_per_example_and_marked",
         KINDS + "test_what_comes_back_has_one_shape_for_every_option"),
    ),
    Mutant(
        "sum_of_devices", "R13", "clipping/_run.py", "axes = varying_axes((batch, mask, key))", "axes = ()",
        ("test_sharded_clipping.py::test_each_example_is_clipped_by_itself_inside_shard_map",),
    ),
    Mutant(
        "rows_gathered", "R14", "clipping/_problem.py",
        "return jnp.tensordot(c.astype(dtype), g.astype(dtype), axes=1, precision=lax.Precision.HIGHEST)",
        "return jnp.sort(c.reshape(-1, *[1] * (g.ndim - 1)) * g.astype(dtype), axis=0).sum(0)",
        ("test_sharded_clipping.py::test_a_sharded_sum_moves_one_parameter_sized_all_reduce",),
    ),
    Mutant(
        "microbatch_ignored", "R15", "clipping/_parts.py", "if parts <= 1:", "if parts >= 1:",
        ("test_training_reports.py::test_memory_follows_the_microbatch_and_ghost_needs_no_copies",
         "clipping/test_engines.py::test_r15_memory_scales_with_the_microbatch"),
    ),
    Mutant(
        "unused_rows_without_noise", "R16", "noise/_gaussian.py", "total = leaf + noise.astype(leaf.dtype)",
        "total = leaf + jnp.where(leaf == 0, 0, noise.astype(leaf.dtype))",
        ("test_training_reports.py::test_rows_of_an_embedding_that_no_example_used_get_full_noise",
         "noise/test_gaussian.py::test_update_is_sum_plus_noise_over_denominator"),
    ),
    Mutant(
        "one_key_for_all", "R17", "clipping/_run.py", "(None, 0))(key, index)", "(None, 0))(key, 0 * index)",
        (CLIPPED + "test_r17_each_example_has_its_own_key_folded_by_its_index",
         "clipping/test_engines.py::test_r17_keys_do_not_depend_on_the_engine"),
    ),
    Mutant(
        "frozen_leaves_trained", "R18", "clipping/_partition.py", "        chosen = jax.tree.leaves(spread)\n",
        "        chosen = [flag or True for flag in jax.tree.leaves(spread)]\n",
        (CLIPPED + "test_r18_frozen_leaves_are_in_no_norm_and_no_sum", KINDS + "test_any_choice_of_frozen_leaves_is_a_closure_over_them"),
    ),
    Mutant(
        "integers_pass", "R19", "clipping/_guards.py", "if dtype is None or not jnp.issubdtype(dtype, jnp.floating):", "if dtype is None:",
        (CLIPPED + "test_r19_leaves_without_a_gradient_are_named",
         KINDS + "test_a_leaf_of_any_dtype_without_gradient_is_named_wherever_it_lies"),
    ),
    Mutant(
        "each_device_its_own_noise", "R20", "noise/_gaussian.py", "        _reject_partial_sums(clipped.tree)\n", "",
        ("noise/test_sharding.py::test_a_sum_that_was_not_summed_over_the_devices_is_refused",),
    ),
    Mutant(
        "noise_made_whole", "R21", "noise/_gaussian.py", "normal(key_words, leaf.shape, _explicit_sharding(leaf))",
        "normal(key_words, (leaf.size,)).reshape(leaf.shape)",
        ("noise/test_sharding.py::test_noise_of_a_sharded_leaf_is_bit_equal_and_no_device_holds_the_whole_leaf",),
    ),
    Mutant(
        "noise_of_every_part", "R22", "types.py", "sensitivity = jnp.maximum(self.sensitivity, other.sensitivity)",
        "sensitivity = self.sensitivity + other.sensitivity",
        ("test_training_reports.py::test_microbatch_sums_of_one_draw_take_one_noise",
         KINDS + "test_parts_of_a_draw_however_cut_take_the_noise_of_one"),
    ),
    Mutant(
        "noise_squared", "R23", "noise/_gaussian.py", "std = noise_multiplier * clipped.sensitivity *",
        "std = noise_multiplier * clipped.sensitivity**2 *",
        ("noise/test_gaussian.py::test_noise_is_linear_in_the_clipping_norm", FUZZ + "noise.py::test_traced_numbers_give_full_noise_or_nan"),
    ),
    Mutant(
        "noise_repeats", "R24", "noise/_gaussian.py", "state.count + jnp.int32(1)", "state.count + jnp.int32(0)",
        ("noise/test_gaussian.py::test_noise_of_ten_steps_is_distinct_and_a_state_kept_repeats_it",
         "noise/test_resume.py::test_five_and_five_steps_through_flax_are_ten"),
    ),
    Mutant(
        "sampler_starts_again", "R24", "sampling/_sampler.py", "range(start, start + num_steps)", "range(num_steps)",
        ("noise/test_resume.py::test_five_and_five_steps_through_flax_are_ten", "sampling/test_other_samplers.py::test_contract"),
    ),
    Mutant(
        "count_for_nothing", "R25", "dpsgd/_plan.py", "share = (multiplier / (2 * count_std)) ** 2", "share = (multiplier / (200 * count_std)) ** 2",
        ("dpsgd/test_adaptive.py::test_the_counts_noise_has_the_stated_std",
         KINDS + "test_gradient_and_count_cost_one_gaussian_at_any_split"),
    ),
    Mutant(
        "nan_passes", "R26", "_checks.py", "if not (above and below):  # a NaN fails both", "if number < low or number > high:",
        (REPORTS + "test_a_noise_multiplier_below_zero_or_nan_is_refused", CLIPPED + "test_r26_bad_denominators_are_refused_at_the_factory",
         FUZZ + "plan.py::test_adaptive_clipping_is_refused_or_usable", FUZZ + "noise.py::test_a_noise_multiplier_is_refused_or_finite"),
    ),
    Mutant(
        "no_noise_raises", "R27", "accounting/_gaussian.py", "float(np.square(np.float64(shift) / np.float64(sigma)))", "(shift / sigma) ** 2",
        (REPORTS + "test_no_noise_is_epsilon_infinity_and_no_exception", "accounting/test_bad_input.py::test_the_ends_of_the_ranges_are_answered"),
    ),
    Mutant(
        "orders_near_one_win", "R28", "accounting/_conversion.py", "(log_delta + xp.log(orders)) / (orders - 1)",
        "(log_delta + xp.log(orders)) / (orders + 1)",
        (REPORTS + "test_epsilon_zero_means_that_delta_at_zero_is_below_delta", ACCOUNTING + "test_any_orders_bound_and_more_never_raise"),
    ),
    Mutant(
        "delta_wavers", "R29", "accounting/_queries.py", "    upper = ends[1] if ends[1] <= 1.0 else 1.0  # a NaN is no bound\n",
        "    upper = min(ends[1] * (1 + 0.2 * math.sin(1e3 * epsilon)), 1.0)\n", (REPORTS + "test_delta_decreases",),
    ),
    Mutant(
        "large_epsilon_cut", "R30", "accounting/_pld.py", "return Problem(parts).epsilon(math.log(delta), self._excess)",
        "return tuple(min(end, 10.0) for end in Problem(parts).epsilon(math.log(delta), self._excess))",
        (REPORTS + "test_large_epsilon_is_answered",),
    ),
    Mutant(
        "bracket_stays", "R31", "accounting/_calibrate.py", "            return self._widen()\n", "            return None\n",
        (REPORTS + "test_one_default_call_calibrates_small_and_large_targets", "accounting/test_calibrate.py::test_the_bracket_widens_itself"),
    ),
    Mutant(
        "ledger_changes", "R32", "accounting/_ledger.py", "return dataclasses.replace(self, process=self.process | process)",
        'return object.__setattr__(self, "process", self.process | process) or self',
        (REPORTS + "test_a_query_leaves_the_ledger_as_it_was", "accounting/test_ledger.py::test_a_ledger_is_immutable_and_answers_like_a_process"),
    ),
    Mutant(
        "central_limit", "R33", "accounting/_trade_off.py", "max(float(np.max(sides[0] - sides[1])), 0.0)",
        "max(float(np.median(sides[0] - sides[1])), 0.0)",
        (REPORTS + "test_epsilon_is_not_the_central_limit_figure", "accounting/test_trade_off.py::test_gdp_covers_the_curve"),
    ),
    Mutant(
        "replace_one_single", "R34", "accounting/_gaussian.py", "shift = 2.0 if", "shift = 1.0 if",
        (REPORTS + "test_replace_one_doubles_the_distance_under_both_accountants",
         ACCOUNTING + "test_replacing_costs_more_than_leaving_under_both_accountants"),
    ),
    Mutant(
        "one_direction", "R35", "accounting/_sampled_pairs.py", "    return pair, pair.reversed()\n", "    return (pair.reversed(),)\n",
        (REPORTS + "test_the_worse_direction_counts", "accounting/test_reference.py::test_the_answer_is_on_the_private_side_and_tight"),
    ),
    Mutant(
        "half_of_the_curve", "R36", "accounting/_discrete.py", "    kinks = law.losses\n", "    kinks = law.losses[law.losses > 0]\n",
        (REPORTS + "test_beta_of_randomised_response",),
    ),
    Mutant(
        "classical_sigma", "R37", "accounting/_queries.py", "ends = _run(_mu_gdp.epsilon, known.mu, math.log(delta))",
        "ends = (known.mu * math.sqrt(2 * math.log(1.25 / delta)),) * 2",
        (REPORTS + "test_calibration_of_the_gaussian_is_exact",),
    ),
    Mutant(
        "float32_inside", "R38", "accounting/_evaluate.py",
        "        with jax.enable_x64(True):\n            return rounded(in_float64([jnp.asarray(n, jnp.float64) for n in numbers]))\n",
        "        with jax.enable_x64(False):\n            return in_float64([jnp.asarray(n, jnp.float32) for n in numbers])\n",
        ("accounting/test_rdp.py::test_a_float32_program_gets_the_same_value_rounded_up",),
    ),
    Mutant(
        "last_phase_counts", "R39", "accounting/_process.py", "(first, _plus(times, count))", "(first, count)",
        (REPORTS + "test_phases_of_one_mechanism_are_its_sum", ACCOUNTING + "test_phases_in_any_order_and_cut_anywhere_cost_the_same"),
    ),
    Mutant(
        "a_program_for_each_rate", "R40", "sampling/_poisson.py", "    sample_rate: float\n",
        "    sample_rate: float = dataclasses.field(metadata=STATIC)\n",
        ("sampling/test_poisson.py::test_one_compile_serves_all_steps_and_samplers_of_one_shape",),
    ),
    Mutant(
        "updates_in_float32", "R41", "noise/_gaussian.py", "            noisy = _cast_like(noisy, params)\n", "            pass\n",
        ("noise/test_gaussian.py::test_noise_is_drawn_in_float32_and_cast_last", KINDS + "test_a_step_maps_its_carry_to_its_own_dtypes"),
    ),
    Mutant(
        "batch_axis_unchecked", "R42", "clipping/_guards.py", "if any(jnp.shape(leaf)[0] != rows for _, leaf in leaves):", "if rows < 0:",
        (CLIPPED + "test_r42_a_batch_without_a_common_batch_axis_is_named",
         KINDS + "test_leaves_without_one_batch_axis_are_named_with_their_shapes"),
    ),
    # Found by readers who tried to get a wrong answer (README, "Adversarial passes").
    Mutant(
        "stability_of_any_size", "A01", "clipping/_clipped_grad.py", 'check_real("stability", stability, low=NORM_RANGE[0])',
        'check_real("stability", stability)', (CLIPPED + "test_bad_engines_losses_and_stability_are_refused",),
    ),
    Mutant(
        "summed_twice", "A02", "types.py", "        _reject_equal_parts(self.tree, axis_name)\n", "",
        ("test_types.py::test_a_sum_that_is_the_same_on_all_devices_is_not_summed_over_them",),
    ),
    Mutant(
        "mask_forgotten", "A03", "dpsgd/_grad_fn.py", "        mask is not None,", "        True,",
        ("dpsgd/test_plan.py::test_a_forgotten_mask_is_refused",),
    ),
    Mutant(
        "rounded_in_one_place", "A04", "clipping/_vmap.py", "    gradients = settled(gradients)\n", "",
        (CLIPPED + "test_the_norm_is_that_of_the_numbers_that_are_summed",),
    ),
    Mutant(
        "tiny_norms_pass", "A05", "clipping/_rules.py", "jnp.where((limits >= low) & (limits <= high), limits, jnp.nan)", "limits",
        (CLIPPED + "test_a_bad_traced_clipping_norm_gives_nan_noise",),
    ),
    Mutant(
        "lanes_share_noise", "A06", "noise/_gaussian.py", "    if several_sums and size > 1:", "    if False:",
        ("noise/test_gaussian.py::test_lanes_that_share_a_key_are_refused_and_equal_ones_are_not_released",),
    ),
    Mutant(
        "leaves_of_other_shapes_add", "A08", "types.py", "        if shapes[0] != shapes[1]:", "        if False:",
        ("test_types.py::test_parts_of_different_draws_do_not_add",),
    ),
    Mutant(
        "leaves_trusted", "A10", "accounting/_queries.py", "        if not (count >= 0 and math.floor(count) == count and mechanism.is_valid()):",
        "        if False:", ("accounting/test_bad_input.py::test_a_number_changed_past_its_factory_is_refused",),
    ),
    Mutant(
        "wrapped_mass_left_in", "A16", "accounting/_pld_bounds.py", "value += side * (curve.error + curve.error_slope * abs(offset)) - alias",
        "value += side * (curve.error + curve.error_slope * abs(offset))", ("accounting/test_smooth.py::test_the_law_is_below_the_truth_with_a_narrow_window",),
    ),
    Mutant(
        "variation_halved", "A16", "accounting/_pld_smooth.py", "varies = 2 * steep_g * _larger(g)", "varies = steep_g * _larger(g)",
        ("accounting/test_smooth.py::test_masses_and_variations_of_cells_lie_on_their_side",),
    ),
    Mutant(
        "modulus_too_small", "A16", "accounting/_pld_smooth.py", "short / scales[:, None] ** 2", "short / scales[:, None]",
        ("accounting/test_smooth.py::test_what_bounds_the_modulus_bounds_it_for_all_frequencies_above",),
    ),
    Mutant(
        "mean_not_kept", "A17", "accounting/_allocation_known.py", "    far = np.clip(far, 0.0, mass)\n", "    far = np.zeros_like(mass)\n",
        (MECHANISMS + "test_random_allocation_of_two_steps", MECHANISMS + "test_random_allocation_of_three_steps"),
    ),
    Mutant(
        "zero_ratio_is_no_loss", "A17", "accounting/_allocation.py", "infinite = upper.masses[0] if self.is_reversed else upper.lost_p",
        "infinite = 0.0 if self.is_reversed else upper.lost_p", (MECHANISMS + "test_no_mass_is_lost_above",),
    ),
    Mutant(
        "exchanged_as_it_is", "A17", "accounting/_pld_beta.py", "min(epsilon + found - slack, 0.0)", "min(found - slack, 0.0)",
        ("accounting/test_smooth.py::test_one_law_exchanged_is_the_other",),
    ),
    Mutant(
        "mode_from_the_wrong_side", "A17", "accounting/_renyi.py", "alone = (bent > 0) & (slope(dip) < 0)", "alone = (bent > 0) & (slope(dip) > 0)",
        ("accounting/test_rdp.py::test_the_best_order_is_found", "accounting/test_rdp.py::test_tiny_rates_at_whole_orders"),
    ),
    Mutant(
        "rest_is_sure", "A18", "accounting/_gaussian_pairs.py", "    return xp.where(unsure > 0, ends[1] - ends[0], 0.0)", "    return 0.0 * ends[0]",
        ("accounting/test_pairs.py::test_an_unshifted_weight_that_may_be_rounding_bounds_no_ratio",),
    ),
    Mutant(
        "none_by_subtraction", "A18", "accounting/_parallel_poisson.py", "chances, mechanism.relation, none)", "chances, mechanism.relation)",
        (MECHANISMS + "test_parallel_poisson_where_no_appearance_is_rarer_than_rounding",),
    ),
    Mutant(
        "modes_up_to_the_order", "A19", "accounting/_renyi.py", "last = orders + (orders - 1) * xp.sigmoid((-orders - even) / s2)", "last = orders",
        ("accounting/test_rdp.py::test_replace_one_at_rates_near_one_and_little_noise",),
    ),
    Mutant(
        "mass_of_q_left_out", "A19", "accounting/_renyi.py", "        mean=-1.0,\n", "",
        ("accounting/test_rdp.py::test_replace_one_at_rates_near_one_and_little_noise",),
    ),
    Mutant(
        "taking_part_costs_nothing", "A20", "accounting/_pld_apart.py", "c = counts @ np.log(p[1:]) + ", "c = 0 * counts.sum(1) + ",
        ("accounting/test_apart.py::test_one_step_is_its_closed_form",),
    ),
    Mutant(
        "groups_in_the_programs_float", "A21", "accounting/_queries.py", "        if any_traced(self.parts):\n            return tuple((Grouped", "        if False:\n            return tuple((Grouped",
        ("accounting/test_traced.py::test_a_group_is_formed_in_float64",),
    ),
    Mutant(
        "counts_in_the_programs_float", "A21", "accounting/_process.py", "    count, more = _in_program(count), _in_program(more)", "    return count * more",
        ("accounting/test_traced.py::test_counts_are_multiplied_and_added_in_float64",),
    ),
    Mutant(
        "free_choice", "A22", "accounting/_selection.py", "(1 + self.shape) * (math.log(b)", "(math.log(b)",
        ("accounting/test_selection.py::test_it_is_exact_for_pure_mechanisms",),
    ),
)  # fmt: skip


def pytest_configure() -> None:
    """Spares hypothesis the search for the smallest failing example; this module is a plugin of the runs below."""
    from hypothesis import Phase, settings

    quick = settings(phases=(Phase.explicit, Phase.generate), report_multiple_bugs=False)
    settings.register_profile("mutants", quick)
    settings.load_profile("mutants")


def outcome(mutant: Mutant, place: pathlib.Path) -> str:
    """Returns what became of the mutant in the copy at `place`."""
    file = place / "opake_jax" / mutant.file
    text = file.read_text()
    if text.count(mutant.old) != 1:
        return "its place is not there"
    file.write_text(text.replace(mutant.old, mutant.new))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rfE",
        "--tb=no",
        "-p",
        "no:cacheprovider",
        "-p",
        "mutants",
        "-m",
        "",
    ]
    command += [f"tests/{test}" for test in mutant.tests]
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(REPO / ".jax_cache"))
    environment = {
        **os.environ,
        "PYTHONPATH": f"{place}{os.pathsep}{place / 'tests'}",
        "JAX_COMPILATION_CACHE_DIR": cache,
    }
    try:
        done = subprocess.run(
            command,
            cwd=place,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
    finally:
        file.write_text(text)
    if done.returncode not in (0, 1):
        return f"not judged: pytest ended with {done.returncode}: {done.stdout[-300:]}"
    failed = re.findall(r"^(?:FAILED|ERROR) tests/(.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    alive = [t for t in mutant.tests if not any(f == t or f.startswith(f"{t}[") for f in failed)]
    return f"SURVIVED {' '.join(alive)}" if alive else "killed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=[m.name for m in MUTANTS], metavar="NAME")
    chosen = parser.parse_args().only
    bad = 0
    with tempfile.TemporaryDirectory() as directory:
        place = pathlib.Path(directory)
        for part in ("opake_jax", "tests", "examples"):
            shutil.copytree(REPO / part, place / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(REPO / "pyproject.toml", place)
        for mutant in MUTANTS:
            if chosen is None or mutant.name in chosen:
                found = outcome(mutant, place)
                bad += found != "killed"
                print(f"{mutant.reports:8} {mutant.name:28} {found}", flush=True)
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
