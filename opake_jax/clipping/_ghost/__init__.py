"""Clipped sums without per-example gradients, by rewriting the program of one example's gradient.

    _trace      the program of value and gradient of one example
    _liveness   which of its values need never be computed
    _interpret  runs the program and leaves those as terms: pairs of operands whose product they are
    _scan       the same through loops over layers or time
    _terms      what a term is
    _forms      the terms of one leaf, brought into one form
    _cost       how its norm is computed
    _norms      the squared norm of one example's gradient, from the form
    _sums       the weighted sum over examples, from the forms
    _engine     the engine

The idea of clipping by norms that are computed from activations and cotangents is due to Goodfellow 2015 (arXiv:1510.01799),
the weighted sum without a second backward pass to Bu et al. 2022 (book-keeping, arXiv:2210.00038). Nothing here knows
about layers: the patterns are found in the backward program, and what matches none is computed in full, leaf by leaf.
"""
