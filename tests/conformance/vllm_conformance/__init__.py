"""Schedules recorded from vLLM's own scheduler, step by step, against an instance."""
