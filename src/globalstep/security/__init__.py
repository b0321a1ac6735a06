"""Certificates, tokens and TLS: what a process shows of itself, and whom it believes."""
