"""Who computes which unit of work: the lowest that nobody has; then, where that is of use, the one ready last."""

from __future__ import annotations

from globalstep.ps.aggregates.contributors import UnitClaims


def known(**usual_secs):
    """Claims of clients that have computed units of step 0, in so many seconds each."""
    claims = UnitClaims()
    for at, client in enumerate(usual_secs):
        assert claims.take(client, "step", 0, 8, set(), 0.0) == at + 1
    for client, secs in usual_secs.items():
        claims.done(client, "step", secs)
    return claims


def take(claims, client, now, there=(), units=3, base=1):
    return claims.take(client, "step", base, units, set(there), now)


def test_each_client_gets_a_unit_of_its_own_and_one_too_many_waits():
    claims = known(a=1.0, b=1.0, c=1.0, d=1.0)
    assert [take(claims, client, 10.0) for client in "abcd"] == [1, 2, 3, 0]


def test_an_answer_that_was_lost_is_given_again():
    claims = known(a=1.0, b=1.0)
    assert [take(claims, client, 10.0) for client in "abaab"] == [1, 2, 1, 1, 2]


def test_an_equal_client_is_no_backup_until_a_unit_is_overdue():
    claims = known(a=1.0, b=1.0)
    assert [take(claims, client, 10.0, units=2) for client in "ab"] == [1, 2]
    claims.done("a", "step", 11.0)
    assert take(claims, "a", 11.0, {1}, 2) == 0
    assert take(claims, "a", 11.7, {1}, 2) == 2


def test_a_slow_client_has_a_backup_at_once_and_only_one():
    claims = known(slow=5.0, a=1.0, b=1.0, c=1.0)
    assert [take(claims, client, 10.0, units=2) for client in ("slow", "a", "b", "c")] == [1, 2, 1, 0]


def test_a_slow_client_backs_up_nobody():
    claims = known(a=1.0, slow=5.0)
    assert take(claims, "a", 10.0, units=1) == 1
    assert take(claims, "slow", 10.1, units=1) == 0


def test_what_was_claimed_for_another_value_of_the_step_counts_for_nothing():
    claims = known(a=1.0, b=1.0)
    assert take(claims, "a", 10.0, units=1) == 1
    assert take(claims, "b", 10.0, units=1, base=2) == 1


def test_a_unit_of_a_client_that_died_first_thing_is_taken_over():
    claims = UnitClaims()
    assert take(claims, "a", 0.0, units=1) == 1
    assert take(claims, "b", 0.1, units=1) == 0
    assert take(claims, "b", 2.0, units=1) == 1


def test_a_unit_that_is_in_is_given_to_nobody():
    claims = known(a=1.0)
    assert take(claims, "a", 10.0, {1, 2}) == 3
    assert take(claims, "a", 10.0, {1, 2, 3}) == 0


def test_who_is_waited_for_is_named():
    claims = known(a=1.0, b=1.0)
    for client in "ab":
        take(claims, client, 10.0)
    assert claims.view("step", 1, {1}, 12.5) == {"b": (2, 2.5)}


def test_clients_that_are_gone_are_forgotten_in_the_end():
    claims = UnitClaims()
    for number in range(5000):
        claims.take(f"client {number}", "step", number, 1, set(), float(number))
        claims.done(f"client {number}", "step", float(number)) if number % 2 else None
    assert len(claims._claims) <= 4096


def test_so_many_claims_are_kept_and_the_oldest_go():
    claims = UnitClaims()
    for number in range(1100):
        assert claims.take(f"client{number}", "step", 1, 1 << 16, set(), 0.0)
    kept = claims.view("step", 1, set(), 0.0)
    assert (len(kept), "client1099" in kept, "client0" in kept) == (1024, True, False)


def test_what_a_claim_costs_does_not_grow_with_the_square_of_the_claims(monkeypatch):
    claims, asked = UnitClaims(), 0
    for number in range(1000):
        claims.take(f"client{number}", "step", 1, 1000, set(), 0.0)
    usual_secs = claims._usual_secs

    def counted(client):
        nonlocal asked
        asked += 1
        return usual_secs(client)

    monkeypatch.setattr(claims, "_usual_secs", counted)
    claims.take("another", "step", 1, 1000, set(), 0.0)
    assert asked <= 1001
