"""The same job with gs.fit and with its peers: docs/side-by-side.md."""
