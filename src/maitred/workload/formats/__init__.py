"""Trace formats: one module each, registered under the prefix that users type (`azure:FILE`)."""
