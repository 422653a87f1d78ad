"""`python -m maitred` is the command `maitred`."""

from __future__ import annotations

from maitred.cli import main

if __name__ == "__main__":
    main()
