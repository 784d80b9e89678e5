"""Runs a loop of tinker-cookbook as it is: `cookbook.py PACKAGES LOOP SETTING=VALUE …`; the packages hold torch."""

from __future__ import annotations

import runpy
import sys

if __name__ == "__main__":
    packages, loop, *settings = sys.argv[1:]
    sys.path.append(packages)
    sys.argv = [loop, *settings]
    runpy.run_module(f"tinker_cookbook.recipes.{loop}", run_name="__main__")
