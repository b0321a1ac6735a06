"""The same job with gs.fit and with its peers: docs/peers.md."""
