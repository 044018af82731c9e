"""What is the bounded sum?

`clipped_grad` turns a loss of one example into a function that returns the sum of clipped per-example gradients, as a
`ClippedSum` that carries its sensitivity to the noise.
"""

from opake_jax.clipping._adaptive import AdaptiveGradFn, AdaptiveState, adaptive_clipped_grad
from opake_jax.clipping._auto import Auto
from opake_jax.clipping._chunked import Chunked
from opake_jax.clipping._clipped_grad import GradFn, auto_clipped_grad, clipped_grad
from opake_jax.clipping._explain import Explanation, LeafExplanation, explain
from opake_jax.clipping._ghost._engine import Ghost
from opake_jax.clipping._microbatched import Microbatched
from opake_jax.clipping._projection import Projection, projection, random_projection
from opake_jax.clipping._rules import PerGroup, per_group
from opake_jax.clipping._run import PrivateAux
from opake_jax.clipping._vmap import Vmap

__all__ = [
    "AdaptiveGradFn",
    "AdaptiveState",
    "Auto",
    "Chunked",
    "Explanation",
    "Ghost",
    "GradFn",
    "LeafExplanation",
    "Microbatched",
    "PerGroup",
    "PrivateAux",
    "Projection",
    "Vmap",
    "adaptive_clipped_grad",
    "auto_clipped_grad",
    "clipped_grad",
    "explain",
    "per_group",
    "projection",
    "random_projection",
]
