"""Trace formats: a module for each kind of file, registered under the prefix that users type (`azure:FILE`)."""
