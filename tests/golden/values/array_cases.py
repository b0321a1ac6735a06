"""Functions of arrays: special functions, matrices, order, segments, space and depth; see value_cases."""

import functools

import numpy as np
from value_cases import Values, array, fed


def of(build, *shapes, low=0.0, high=1.0, known=True):
    """Give the case of a function of arrays with values within [low, high)."""

    def case(tf):
        feeds = []
        for i, shape in enumerate(shapes):
            node, value = fed(tf, f"input {i}", *shape, known=known)
            feeds.append((node, (low + (high - low) * value).astype(np.float32)))
        nodes = [node for node, _ in feeds]
        found = build(tf, *nodes)
        outputs = (
            {str(i): node for i, node in enumerate(found)} if isinstance(found, (list, tuple)) else {"found": found}
        )
        return Values(outputs, feeds, nodes)

    return case


def plain(build):
    """Give the case of a function of constants, without gradients."""

    def case(tf):
        found = build(tf)
        return {str(i): node for i, node in enumerate(found)} if isinstance(found, (list, tuple)) else {"found": found}

    return case


def positive(tf, x):
    """Give symmetric matrices whose eigenvalues are above 0."""
    return tf.matmul(x, x, transpose_b=True) + tf.constant(np.eye(3, dtype=np.float32))


CASES = {
    "erf": of(lambda tf, x: tf.erf(x), (3, 5), low=-3, high=3),
    "erfc": of(lambda tf, x: tf.erfc(x), (3, 5), low=-3, high=3),
    "lgamma": of(lambda tf, x: tf.lgamma(x), (3, 5), low=0.1, high=8),
    "lgamma below 0": of(lambda tf, x: tf.lgamma(x), (3, 5), low=-3.9, high=-3.1),
    "digamma": of(lambda tf, x: tf.digamma(x), (3, 5), low=0.2, high=9),
    "digamma below 0": of(lambda tf, x: tf.digamma(x), (3, 5), low=-1.9, high=-1.2),
    "lbeta": of(lambda tf, x: tf.lbeta(x), (2, 3), low=0.3, high=4),
    "asinh": of(lambda tf, x: tf.asinh(x), (3, 5), low=-3, high=3),
    "acosh": of(lambda tf, x: tf.acosh(x), (3, 5), low=1.1, high=5),
    "atanh": of(lambda tf, x: tf.atanh(x), (3, 5), low=-0.9, high=0.9),
    "xlogy": of(lambda tf, x, y: tf.math.xlogy(x, y), (3, 4), (4,), low=0.1, high=2),
    "xlogy of zeros": of(lambda tf, x, y: tf.math.xlogy(tf.floor(x), y), (3, 4), (3, 4), low=0.1, high=2),
    "xdivy": of(lambda tf, x, y: tf.math.xdivy(x, y), (3, 1), (3, 4), low=0.1, high=2),
    "diag": of(lambda tf, x: tf.diag(x), (4,)),
    "diag of a matrix": of(lambda tf, x: tf.diag(x), (2, 3)),
    "diag_part": of(lambda tf, x: tf.diag_part(x), (4, 4)),
    "diag_part of rank 4": of(lambda tf, x: tf.diag_part(x), (2, 3, 2, 3)),
    "matrix_diag": of(lambda tf, x: tf.matrix_diag(x), (2, 3)),
    "matrix_diag_part": of(lambda tf, x: tf.matrix_diag_part(x), (2, 3, 4)),
    "matrix_set_diag": of(lambda tf, x, y: tf.matrix_set_diag(x, y), (2, 3, 3), (2, 3)),
    "matrix_set_diag of tall ones": of(lambda tf, x, y: tf.matrix_set_diag(x, y), (2, 4, 3), (2, 3)),
    "matrix_set_diag of wide ones": of(lambda tf, x, y: tf.matrix_set_diag(x, y), (2, 3, 5), (2, 3)),
    "matrix_band_part": of(lambda tf, x: tf.matrix_band_part(x, 1, 0), (2, 4, 5)),
    "matrix_band_part lower": of(lambda tf, x: tf.matrix_band_part(x, -1, 0), (4, 4)),
    "trace": of(lambda tf, x: tf.trace(x), (2, 3, 3)),
    "matrix_inverse": of(lambda tf, x: tf.matrix_inverse(positive(tf, x)), (2, 3, 3)),
    "matrix_inverse adjoint": of(
        lambda tf, x: tf.matrix_inverse(x + tf.constant(2 * np.eye(3, dtype=np.float32)), adjoint=True), (3, 3)
    ),
    "matrix_determinant": of(lambda tf, x: tf.matrix_determinant(positive(tf, x)), (2, 3, 3)),
    "cholesky": of(lambda tf, x: tf.cholesky(positive(tf, x)), (2, 3, 3)),
    "matrix_solve": of(lambda tf, x, y: tf.matrix_solve(positive(tf, x), y), (2, 3, 3), (2, 3, 2)),
    "cross": of(lambda tf, x, y: tf.cross(x, y), (2, 3), (2, 3)),
    "sort": of(lambda tf, x: tf.sort(x), (3, 5)),
    "sort down an axis": of(lambda tf, x: tf.sort(x, axis=0, direction="DESCENDING"), (4, 3)),
    "argsort": plain(lambda tf: tf.argsort(array("x", 3, 5))),
    "argsort down with ties": plain(lambda tf: tf.argsort([[2, 1, 2, 3, 1]], direction="DESCENDING", stable=True)),
    "unique_with_counts": plain(lambda tf: tf.unique_with_counts([5, 2, 5, 9, 2, 5])),
    "setdiff1d": plain(lambda tf: tf.setdiff1d([1, 2, 3, 4, 3, 5, 6], [1, 3, 5])),
    "unravel_index": plain(lambda tf: tf.unravel_index([2, 5, 7], [3, 3])),
    "roll": of(lambda tf, x: tf.roll(x, [1, -2], [0, 1]), (3, 5)),
    "repeat": of(lambda tf, x: tf.repeat(x, 3, axis=1), (2, 3)),
    "repeat each": of(lambda tf, x: tf.repeat(x, [2, 0, 1], axis=1), (2, 3)),
    "repeat flat": of(lambda tf, x: tf.repeat(x, 2), (2, 2)),
    "meshgrid": of(lambda tf, x, y: tf.meshgrid(x, y), (3,), (4,)),
    "meshgrid of matrix indexing": of(lambda tf, x, y, z: tf.meshgrid(x, y, z, indexing="ij"), (3,), (4,), (2,)),
    "meshgrid of three": of(lambda tf, x, y, z: tf.meshgrid(x, y, z), (3,), (4,), (2,), known=False),
    "batch_gather": of(lambda tf, x: tf.batch_gather(x, [[1, 0, 1], [2, 2, 0]]), (2, 3)),
    "batch_gather rows": of(lambda tf, x: tf.batch_gather(x, [[1], [2]]), (2, 3, 4)),
    "segment_min": of(lambda tf, x: tf.segment_min(x, [0, 0, 1]), (3, 2)),
    "segment_max with ties": of(lambda tf, x: tf.segment_max(tf.round(x) + 0 * x, [0, 0, 0, 1]), (4, 3)),
    "segment_prod": of(lambda tf, x: tf.segment_prod(x, [0, 0, 1]), (3, 2), low=0.5, high=2),
    "unsorted_segment_max": of(lambda tf, x: tf.unsorted_segment_max(x, [1, 0, 1], 2), (3, 2)),
    "unsorted_segment_min": of(lambda tf, x: tf.unsorted_segment_min(x, [1, 0, 1], 2), (3, 2)),
    "unsorted_segment_mean": of(lambda tf, x: tf.unsorted_segment_mean(x, [2, 0, 2], 4), (3, 2)),
    "unsorted_segment_sqrt_n": of(lambda tf, x: tf.unsorted_segment_sqrt_n(x, [2, 0, 2], 3), (3, 2)),
    "unsorted_segment_prod": of(lambda tf, x: tf.unsorted_segment_prod(x, [2, 0, 2], 4), (3, 2), low=0.5, high=2),
    "unsorted_segment_prod with zeros": of(
        lambda tf, x: tf.unsorted_segment_prod(x * tf.constant([[0.0, 1, 0], [1, 1, 1], [1, 1, 0]]), [1, 1, 1], 2),
        *((3, 3),),
        low=0.5,
        high=2,
    ),
    "unsorted segments without rows": plain(
        lambda tf: [f([1.0, 2.0], [1, 1], 2) for f in (tf.unsorted_segment_max, tf.unsorted_segment_min)]
    ),
    "segments of integers": plain(
        lambda tf: [
            *[f([3, -1, 5], [0, 0, 1]) for f in (tf.segment_max, tf.segment_min, tf.segment_prod)],
            *[
                f([3, -1, 5], [2, 0, 2], 3)
                for f in (tf.unsorted_segment_max, tf.unsorted_segment_min, tf.unsorted_segment_prod)
            ],
        ]
    ),
    "reduce_variance": of(lambda tf, x: tf.math.reduce_variance(x, 1), (3, 4)),
    "reduce_std": of(lambda tf, x: tf.math.reduce_std(x), (3, 4)),
    "reduce_euclidean_norm": of(lambda tf, x: tf.math.reduce_euclidean_norm(x, [0], True), (3, 4)),
    "space_to_depth": of(lambda tf, x: tf.space_to_depth(x, 2), (2, 4, 6, 3)),
    "depth_to_space": of(lambda tf, x: tf.depth_to_space(x, 2), (2, 2, 3, 8)),
    "space_to_depth of unknown sizes": of(lambda tf, x: tf.space_to_depth(x, 2), (2, 4, 6, 3), known=False),
    "space_to_batch": of(lambda tf, x: tf.space_to_batch(x, [[1, 1], [0, 2]], 2), (2, 4, 6, 3)),
    "batch_to_space": of(lambda tf, x: tf.batch_to_space(x, [[1, 0], [0, 2]], 2), (8, 3, 4, 3)),
    "space_to_batch_nd": of(lambda tf, x: tf.space_to_batch_nd(x, [3], [[1, 1]]), (2, 4, 3)),
    "batch_to_space_nd": of(lambda tf, x: tf.batch_to_space_nd(x, [2, 1], [[0, 1], [0, 0]]), (4, 3, 2, 3)),
    "extract_image_patches": of(
        lambda tf, x: tf.extract_image_patches(x, [1, 3, 2, 1], [1, 2, 1, 1], [1, 1, 1, 1], "SAME"), (2, 5, 4, 3)
    ),
    **{
        f"cumprod {exclusive} {reverse}": of(
            functools.partial(
                lambda tf, x, exclusive, reverse: tf.cumprod(x, 1, exclusive, reverse),
                exclusive=exclusive,
                reverse=reverse,
            ),
            (3, 4),
            low=0.5,
            high=2,
        )
        for exclusive in (False, True)
        for reverse in (False, True)
    },
}
