"""Short jobs end with their last step; `make nightly` runs a hundred of them (rung 4)."""

import pytest
from short_jobs import SIZES, run_job

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(("ps", "workers"), SIZES)
def test_a_short_job_ends_with_its_last_step(tmp_path, ps, workers):
    ended = run_job(tmp_path / "job", ps, workers, steps=60)
    assert set(ended.codes.values()) == {0}, ended.outputs
    # A PS task that did not notice that a client left would say one of these before it ends.
    assert "nothing was heard of" not in ended.outputs
    assert "which never came" not in ended.outputs
