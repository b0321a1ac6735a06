"""`globalstep.examples`: of TensorFlow's examples the reader of MNIST's files, and the model beside it."""

from globalstep.tf1.module_paths import module_paths

__all__ = module_paths(
    __name__,
    {
        "tutorials.mnist": "gs.tf1.mnist.tutorial:inference",
        "tutorials.mnist.input_data": "gs.tf1.mnist.mnist gs.tf1.mnist.mnist_files",
        "tutorials.mnist.mnist": "gs.tf1.mnist.tutorial",
    },
)
