"""`globalstep.examples`: of TensorFlow's examples the reader of MNIST's files, and the model beside it.

Layer: namespace.
"""

from globalstep.module_paths import module_paths

__all__ = module_paths(
    __name__,
    {
        "tutorials.mnist": "gs.datasets.tutorial:inference",
        "tutorials.mnist.input_data": "gs.datasets.mnist gs.datasets.mnist_files",
        "tutorials.mnist.mnist": "gs.datasets.tutorial",
    },
)
