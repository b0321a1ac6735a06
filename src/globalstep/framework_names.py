"""`gs.torch` and `gs.jax`: embeddings of `gs.fit`, and, called, losses as nodes of a graph.

What a name stands for is imported when it is used: `gs.fit` needs no graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from globalstep.tf1.frameworks.foreign_loss import LossNode


class TorchNames:
    """`gs.torch`: called, it makes a loss of a module; its `Embedding` is a table on the parameter servers.

    It stands for the module `globalstep.torch` too, so that `from globalstep.torch import Embedding` works.
    """

    __name__ = "torch"

    def __call__(
        self,
        module: Any,
        loss: Callable[..., Any],
        inputs: Sequence[Any] = (),
        *,
        name: str | None = None,
        training: bool = True,
    ) -> LossNode:
        """Make a loss of a module; see `torch_loss`."""
        from globalstep.tf1.frameworks.torch_loss import torch_loss

        return torch_loss(module, loss, inputs, name=name, training=training)

    @property
    def Embedding(self) -> Any:  # noqa: N802 (a class)
        """`globalstep.worker.frameworks.torch_embedding.Embedding`, for the modules of `gs.fit`."""
        from globalstep.worker.frameworks.torch_embedding import Embedding

        return Embedding

    @property
    def EmbeddingBag(self) -> Any:  # noqa: N802 (a class)
        """`globalstep.worker.frameworks.torch_embedding.EmbeddingBag`, for the modules of `gs.fit`."""
        from globalstep.worker.frameworks.torch_embedding import EmbeddingBag

        return EmbeddingBag


#: `gs.torch`.
torch = TorchNames()


class JaxNames:
    """`gs.jax`: called, it makes a loss of parameters; its `Embedding` is a table on the parameter servers.

    It stands for the module `globalstep.jax` too, so that `from globalstep.jax import Embedding` works.
    """

    __name__ = "jax"

    def __call__(
        self,
        params: Any,
        loss: Callable[..., Any],
        inputs: Sequence[Any] = (),
        *,
        name: str | None = None,
        jit: bool = True,
    ) -> LossNode:
        """Make a loss of parameters; see `jax_loss`."""
        from globalstep.tf1.frameworks.jax_loss import jax_loss

        return jax_loss(params, loss, inputs, name=name, jit=jit)

    @property
    def Embedding(self) -> Any:  # noqa: N802 (a class)
        """`globalstep.worker.frameworks.jax_embedding.Embedding`, for the parameters of `gs.fit`."""
        from globalstep.worker.frameworks.jax_embedding import Embedding

        return Embedding


#: `gs.jax`.
jax = JaxNames()
