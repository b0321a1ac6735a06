"""The number of parameters of a model, as `tf.contrib.tfprof.model_analyzer` and slim's count them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from globalstep.tf1.graph.graph import Graph, GraphKeys, get_default_graph

#: Counts the parameters of Variables that are trained.
TRAINABLE_VARS_PARAMS_STAT_OPTIONS = {"select": ["params"], "account_type_regexes": ["_trainable_variables"]}
#: Accepted by `print_model_analysis`, which counts no operations.
FLOAT_OPS_OPTIONS = {"select": ["float_ops"], "account_type_regexes": [".*"]}

_log = logging.getLogger("globalstep")


@dataclass(frozen=True)
class ModelAnalysis:
    """The counts of an analysis.

    Attributes:
        total_parameters: Elements of all Variables that are trained.
    """

    total_parameters: int


def print_model_analysis(
    graph: Graph | None = None,
    run_meta: Any = None,
    op_log: Any = None,
    tfprof_cmd: str = "scope",
    tfprof_options: Any = None,
) -> ModelAnalysis:
    """Print the Variables that are trained, each with its shape and how many elements it has.

    Args:
        graph: Default the current one.
        run_meta: Accepted.
        op_log: Accepted.
        tfprof_cmd: Accepted.
        tfprof_options: Only parameters are counted, whatever it selects; that is logged if it selects operations.

    Returns:
        The sum. A Variable whose shape is not known counts nothing.
    """
    if "float_ops" in (tfprof_options or {}).get("select", ()):
        _log.warning("print_model_analysis counts parameters; floating point operations are not counted.")
    variables = (graph or get_default_graph()).get_collection(GraphKeys.TRAINABLE_VARIABLES)
    sizes = {one.op_name: (one.shape, one.shape.num_elements() or 0) for one in variables}
    total = sum(size for _, size in sizes.values())
    print(f"_TFProfRoot (--/{total} params)")
    for name, (shape, size) in sizes.items():
        print(f"  {name} ({'x'.join(str(axis) for axis in shape)}, {size}/{size} params)")
    return ModelAnalysis(total)


def analyze_vars(variables: Iterable[Any], print_info: bool = False) -> tuple[int, int]:
    """Give how many elements and bytes some Variables have, and print that if asked to."""
    lines, total, total_bytes = ["---------", "Variables: name (type shape) [size]", "---------"], 0, 0
    for variable in variables:
        size = variable.shape.num_elements() or 0
        sizes = "x".join(map(str, variable.shape.as_list()))
        lines.append(f"{variable.name} ({variable.dtype.name} {sizes}) [{size}, bytes: {size * variable.dtype.size}]")
        total, total_bytes = total + size, total_bytes + size * variable.dtype.size
    if print_info:
        print(*lines, f"Total size of variables: {total}", f"Total bytes of variables: {total_bytes}", sep="\n")
    return total, total_bytes
