"""What PS tasks do for a step under the shard's lock stays within its budget."""

import sys

import pytest

from benchmarks.critical_section import BUDGETS, count

pytestmark = pytest.mark.long


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the budgets are bytecodes of CPython 3.11")
@pytest.mark.skipif(sys.gettrace() is not None, reason="counts with sys.settrace, as what measures coverage does")
@pytest.mark.parametrize("spec", BUDGETS)
def test_what_is_done_under_the_lock_is_within_its_budget(spec):
    found = count(spec)
    # It counts at all, and knows what for.
    assert found["decision"] > 300
    assert found["ids, order and limits"] > 100
    assert sum(found.values()) <= BUDGETS[spec], found.most_common()
