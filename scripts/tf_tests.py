"""Run TensorFlow 1.12's own unit tests on globalstep, and say file by file what passes and why the rest does not.

    git --git-dir=TENSORFLOW archive v1.12.0 tensorflow/python tensorflow/contrib | tar x -C T
    python scripts/tf_tests.py --tree T
    python scripts/tf_tests.py --tree T tensorflow/python/kernel_tests/concat_op_test.py -v

    python scripts/tf_tests.py --tree T --page tests/compatibility/tf_tests.md

The last writes which tests are not meant to pass, each under its reason of `tf_test_reasons.py`, and which fail without
one. Nothing of TensorFlow's is in this repository: T is a folder of yours. Each file runs in a process of its own, in a
temporary folder, with `tf_test_modules.py` as a plugin of pytest, which gives the names of TensorFlow's modules. It
needs `pip install six mock`, and pytest-timeout for a limit of each test.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from tf_test_reasons import REASONS as NOT_MEANT

PLUGIN = "tf_test_modules"
#: Tests of kernels: a row of the page -> files.
KERNELS = {
    "variables, scopes": "dense_update_ops partitioned_variables template variable_ops variable_scope variables",
    "embeddings, gathers, scatters": "embedding_ops gather_nd_op gather_op scatter_nd_ops scatter_ops"
    " segment_reduction_ops",
    "queues, readers, parsing": "fifo_queue padding_fifo_queue priority_queue random/random_shuffle_queue reader_ops"
    " io_ops parsing_ops decode_csv_op decode_raw_op",
    "lookup tables, strings": "lookup_ops as_string_op reduce_join_op string_join_op string_split_op string_strip_op"
    " string_to_hash_bucket_op string_to_number_op substr_op",
    "reductions, checks, clipping": "accumulate_n bincount_op check_ops clip_ops confusion_matrix in_topk_op norm_op"
    " reduction_ops topk_op unique_op where_op",
    "arrays": "array_ops broadcast_to_ops cast_op concat_op constant_op dynamic_partition_op dynamic_stitch_op"
    " identity_n_op_py identity_op_py manip_ops one_hot_op pad_op reshape_op reverse_sequence_op shape_ops slice_op"
    " split_op stack_op transpose_op unstack_op",
    "sparse": "sets sparse_add_op sparse_concat_op sparse_ops sparse_reorder_op sparse_reshape_op sparse_slice_op"
    " sparse_tensor_dense_matmul_op sparse_to_dense_op_py",
    "control flow, arrays of tensors": "control_flow_ops_py functional_ops py_func session_ops tensor_array_ops",
    "losses, metrics, networks": "init_ops losses metrics relu_op rnn summary_ops weights_broadcast xent_op",
}
FILES = [
    "tensorflow/python/training/*_test.py",
    *(f"tensorflow/python/kernel_tests/{name}_test.py" for names in KERNELS.values() for name in names.split()),
    "tensorflow/python/summary/writer/*_test.py",
    "tensorflow/contrib/opt/python/training/*_test.py",
]
#: What only an older numpy takes -> what every one does.
OLDER = {
    "int(2 * self._labels[i] + np.random.randint(0, 2))": "int(2 * self._labels[i, 0] + np.random.randint(0, 2))",
    "newshape=": "shape=",
    **{
        f"{array}[{place}]": f"{array}[tuple({place})]"
        for array, place in [
            ("result", "ind"),
            ("result", "index"),
            ("inp", "slices"),
            ("np_ans", "slices"),
        ]
    },
}
#: The reason of those that have none.
OPEN = "Open"
#: What a failing test's text begins with -> what kind of failure it is.
REASONS = [
    (r".*(?:inhomogeneous shape|'newshape'|only 0-dimensional arrays).*", "numpy is newer than the test"),
    (r"NoSuchNameError: (\S+\._\w+)", r"private name: \1"),
    (r"NoSuchNameError: (\S+)", r"missing name: \1"),
    (r"TypeError: .*unexpected keyword argument '(\w+)'", r"missing argument: \1"),
    (r"(\w+(?:Error|Exception|Failed)\b).*", r"\1"),
]


@dataclass
class Report:
    """Results of the tests of a file: counts, and for each failure its test, its kind, its line and its text."""

    file: str
    passed: int = 0
    skipped: int = 0
    failures: list[tuple[str, str, str, str]] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tests and print a table; gives 0 whatever they gave, since they are the measure, not the check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--tree", type=Path, required=True, metavar="T", help="folder with TensorFlow 1.12's `tensorflow`"
    )
    parser.add_argument("--secs", type=float, default=120.0, help="limit of a file (default 120)")
    parser.add_argument("--jobs", type=int, default=2, help="files at a time (default 2)")
    parser.add_argument("-v", "--verbose", action="store_true", help="show each test that fails")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the failing tests by reason to this file")
    parser.add_argument("files", nargs="*", default=FILES, help="patterns below T (default: what tf1/ has)")
    args = parser.parse_args(argv)
    tree = args.tree.resolve()
    if lacking := [name for name in ("six", "mock") if importlib.util.find_spec(name) is None]:
        parser.error(f"TensorFlow's tests import what is not installed: pip install {' '.join(lacking)}")
    files = sorted({path for pattern in args.files for path in tree.glob(pattern)})
    if not files:
        parser.error(f"{tree} has none of {', '.join(args.files)}")
    print("| file | passed | failed | skipped |\n|---|---:|---:|---:|")
    reports = []
    with ThreadPoolExecutor(args.jobs) as pool:
        for report in pool.map(lambda path: run(path, tree, args.secs), files):
            print(f"| {report.file} | {report.passed} | {len(report.failures)} | {report.skipped} |", flush=True)
            for test, reason, line, _ in report.failures if args.verbose else ():
                print(f"    {test}: {reason}: {line}", flush=True)
            reports.append(report)
    failed = sum(len(report.failures) for report in reports)
    print(f"| all | {sum(one.passed for one in reports)} | {failed} | {sum(one.skipped for one in reports)} |\n")
    print("| reason | tests |\n|---|---:|")
    reasons = Counter(reason for report in reports for _, reason, _, _ in report.failures)
    for reason, count in reasons.most_common(None if args.verbose else 40):
        print(f"| {reason} | {count} |")
    if args.page is not None:
        args.page.write_text(page(reports))
    return 0


def page(reports: Sequence[Report]) -> str:
    """Give the page of results: counts of each family of files, and each failing test under its reason."""
    families: dict[str, Counter[str]] = {}
    named: dict[str, dict[str, dict[str, list[str]]]] = {reason: {} for reason in (*NOT_MEANT, OPEN)}
    for report in reports:
        path = report.file.removeprefix("tensorflow/").removesuffix("_test.py")
        family, _, file = path.rpartition("/")
        rows = (row for row, names in KERNELS.items() if path.partition("kernel_tests/")[2] in names.split())
        counts = families.setdefault(next((f"kernel_tests: {row}" for row in rows), family), Counter())
        counts.update(passed=report.passed, skipped=report.skipped)
        for test, kind, _, text in report.failures:
            reason = not_meant(f"{test}: {kind}: {text}")
            counts.update({"open" if reason == OPEN else "not meant": 1})
            _, case, name = test.split(".") if test.count(".") == 2 else ("", "", "")
            named[reason].setdefault(file, {}).setdefault(case, []).append(name.removeprefix("test").lstrip("_"))
    columns = ("passed", "not meant", "open", "skipped")
    lines = [
        *("# TensorFlow 1.12's own unit tests", "", "Written by `scripts/tf_tests.py --tree T --page FILE`."),
        "A test that is not meant to pass stands under its reason below, those of a class together, without `test`, or",
        "as a number if there are many (`-v` shows each); open ones are last.",
        *("", f"| tests of | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)),
        *(f"| {family} | {' | '.join(str(counts[one]) for one in columns)} |" for family, counts in families.items()),
    ]
    for reason, files in named.items():
        if files:
            count = sum(len(names) for cases in files.values() for names in cases.values())
            lines += ["", f"## {reason}: {count}", ""]
            lines += [f"- {file}: {'; '.join(map(_shortly, cases, cases.values()))}" for file, cases in files.items()]
    return "\n".join(lines) + "\n"


def _shortly(case: str, names: Sequence[str]) -> str:
    """Give a class's failing tests: their names without "test", or how many there are."""
    return f"{case} ({len(names)})" if len(names) > 4 else f"{case} {', '.join(names)}" if case else "all of it"


def not_meant(failure: str) -> str:
    """Give the reason why a test is not meant to pass, or OPEN."""
    fits = (reason for reason, patterns in NOT_MEANT.items() if any(re.search(each, failure) for each in patterns))
    return next(fits, OPEN)


def run(path: Path, tree: Path, limit_secs: float) -> Report:
    """Run a file of tests in a process of its own."""
    report = Report(str(path.relative_to(tree)))
    with tempfile.TemporaryDirectory() as folder:
        text = path.read_text()
        for old, new in OLDER.items():
            text = text.replace(old, new)
        Path(folder, path.name).write_text(text)
        results, limits = Path(folder, "results.xml"), []
        if importlib.util.find_spec("pytest_timeout"):
            limits = ["--timeout", "30"]
        command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", folder, "-p", PLUGIN,
                   "-p", "no:cacheprovider", "--junitxml", str(results), *limits, path.name]  # fmt: skip
        environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "TF_TREE": str(tree)}
        ended = "ended without a result"
        try:
            subprocess.run(command, cwd=folder, env=environ, timeout=limit_secs, capture_output=True, check=False)
        except subprocess.TimeoutExpired:
            ended = f"takes more than {limit_secs:.0f} s"
        if not results.exists():
            report.failures.append((path.name, ended, "", ""))
            return report
        for case in ElementTree.parse(results).iter("testcase"):
            if case.find("skipped") is not None:
                report.skipped += 1
            elif (text := next(_texts(case), None)) is None:
                report.passed += 1
            else:
                report.failures.append((f"{case.get('classname')}.{case.get('name')}", *_reason(text)))
    return report


def _texts(case: ElementTree.Element) -> Iterator[str]:
    for kind in ("failure", "error"):
        for one in case.findall(kind):
            yield f"{one.get('message', '')}\n{one.text or ''}"


def _reason(text: str) -> tuple[str, str, str]:
    """Give the kind of a failure, the line that says what it was, and all such lines."""
    lines = [line.removeprefix("E").strip() for line in text.splitlines() if line.startswith("E ")] or text.splitlines()
    whole = "\n".join(lines)
    for pattern, reason in REASONS:
        if match := re.search(pattern, whole):
            return match.expand(reason), match[0][:200], whole
    return "other", lines[0][:200] if lines else "", whole


if __name__ == "__main__":
    sys.exit(main())
