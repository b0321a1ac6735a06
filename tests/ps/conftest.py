"""What tests of a PS task share: the state of every shard is looked at after every event."""

import pytest

from globalstep.ps.shard.shard import Shard
from globalstep.ps.shard.validation import problems


@pytest.fixture(autouse=True)
def valid_states(monkeypatch):
    """Fail where an event, also one that was refused, leaves a state that cannot be."""
    handle = Shard.handle

    def checked(self, event):
        try:
            return handle(self, event)
        finally:
            with self._lock:
                found = problems(self.now)
            assert not found, (event, found)

    monkeypatch.setattr(Shard, "handle", checked)
