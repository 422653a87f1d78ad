"""Trace formats: one file each, registered under the prefix that users type (`azure:FILE`)."""
