"""Certificates, tokens and TLS: the credentials that a process shows, and those that it trusts."""
