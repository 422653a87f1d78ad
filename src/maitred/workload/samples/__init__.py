"""Sample traces that come with maitred, and the script that makes them."""

from __future__ import annotations
