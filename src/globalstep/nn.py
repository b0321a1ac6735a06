"""`gs.nn`: what neural networks are built of.

Layer: namespace.
"""

from globalstep.lazy import namespace, nested_namespace
from globalstep.tf1.absent import ABSENT_IN_NN
from globalstep.tf1.rnn import CELLS

_NAMES = {
    "globalstep.tf1.ops.conv_ops": "avg_pool conv2d max_pool",
    "globalstep.tf1.ops.cross_entropy_ops": (
        "log_poisson_loss sigmoid_cross_entropy_with_logits softmax_cross_entropy_with_logits "
        "softmax_cross_entropy_with_logits_v2 sparse_softmax_cross_entropy_with_logits "
        "weighted_cross_entropy_with_logits"
    ),
    "globalstep.tf1.ops.embedding_ops": "embedding_lookup embedding_lookup_sparse safe_embedding_lookup_sparse",
    "globalstep.tf1.ops.math_ops": "log_sigmoid sigmoid tanh",
    "globalstep.tf1.ops.nn_ops": (
        "bias_add crelu dropout elu in_top_k l2_loss leaky_relu log_softmax relu relu6 relu_layer selu "
        "softmax softplus softsign swish top_k xw_plus_b zero_fraction"
    ),
    "globalstep.tf1.ops.more_conv_ops": (
        "atrous_conv2d conv1d conv2d_transpose convolution depthwise_conv2d depthwise_conv2d_native=depthwise_conv2d "
        "local_response_normalization lrn pool separable_conv2d"
    ),
    "globalstep.tf1.ops.normalization_ops": "batch_normalization fused_batch_norm l2_normalize moments",
    "globalstep.tf1.ops.volume_ops": "avg_pool3d conv3d conv3d_transpose max_pool3d",
    "globalstep.tf1.rnn.raw_rnn": "raw_rnn",
    "globalstep.tf1.rnn.sequences": "bidirectional_dynamic_rnn dynamic_rnn static_bidirectional_rnn static_rnn",
    "globalstep.tf1.ops.spatial_ops": "depth_to_space space_to_batch space_to_depth",
    "globalstep.tf1.ops.sampling_ops": (
        "log_uniform_candidate_sampler nce_loss sampled_softmax_loss uniform_candidate_sampler"
    ),
}

__all__ = namespace(__name__, _NAMES, absent=ABSENT_IN_NN)

#: The cells of recurrent networks.
rnn_cell = nested_namespace(f"{__name__}.rnn_cell", CELLS)
