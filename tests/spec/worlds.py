"""The small worlds that are searched, and which planted bug shows in which of them."""

from __future__ import annotations

from small_world import Setting

__all__ = ["SHOWN_IN", "WORLDS"]

#: Name -> a small world. The first is that of docs/design/simulation.md.
WORLDS = {
    "a crash and a question": Setting(limit=3),
    "a crash": Setting(limit=3, settles=0),
    "one push each": Setting(pushes=1, limit=1, crashes=0, liar=True),
    "a crash and a liar": Setting(limit=3, settles=0, liar=True),
    "contributions": Setting(crashes=0, settles=0, contributions=2),
    "units": Setting(pushes=3, crashes=0, settles=0, contributions=3, units=True),
}
#: Planted bug -> the world that shows it in the fewest steps. Those that are not here need what these worlds do not
#: have: a client of the product, a log, a snapshot, a third PS task, or time.
SHOWN_IN = {
    "id remembered after the apply": "one push each",
    "commit applies only its own entry": "a crash",
    "step visible at admission": "one push each",
    "settled without a fence": "one push each",
    "limit off by one": "one push each",
    "incarnation not checked": "a crash",
    "a forged entry is believed": "one push each",
    "a forged floor is believed": "one push each",
    "read before it is applied": "one push each",
    "entries forgotten once they were told": "one push each",
    "values of now under the push's place": "a crash",
    "a gap between entries is passed over": "a crash and a liar",
    "entries are applied newest first": "a crash",
    "only the newest entries are told": "a crash",
    "a contribution counts twice after a retry": "contributions",
    "a late contribution counts": "units",
    "shards with different sets of contributions": "contributions",
    "units of work summed as they arrive": "units",
    "a unit of work counts twice": "units",
}
