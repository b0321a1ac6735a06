"""Proofs of a connection's token: good for that token and that beginning, and for one side alone."""

from __future__ import annotations

from globalstep.security.connection_proofs import CLAIM_BYTES, NAME_BYTES, PROOF_BYTES, answer, claim, name_of, proof

TOKEN, OTHER = bytes(range(32)), bytes(32)


def test_a_claim_names_the_token_and_does_not_show_it():
    claimed = claim(TOKEN)
    assert len(claimed) == CLAIM_BYTES
    assert claimed[:NAME_BYTES] == name_of(TOKEN) != name_of(OTHER)
    assert claimed[:NAME_BYTES] not in TOKEN
    assert claimed != claim(TOKEN), "each claim has a number of its own"


def test_a_proof_is_of_one_token_one_claim_and_one_side():
    claimed, again = claim(TOKEN), claim(TOKEN)
    proofs = {
        answer(TOKEN, claimed),
        proof(TOKEN, claimed),
        answer(TOKEN, again),
        proof(TOKEN, again),
        answer(OTHER, claimed),
        proof(OTHER, claimed),
    }
    assert len(proofs) == 6
    assert {len(one) for one in proofs} == {PROOF_BYTES}
    assert answer(TOKEN, claimed) == answer(TOKEN, claimed)
