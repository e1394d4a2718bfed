"""Entry point of `python -m selective_backprop_lab` and of the command selective-backprop."""

import os
import sys


def main() -> None:
    """Run the command line, or say what to install for it."""
    try:
        from selective_backprop_lab.cli import app
    except ImportError as error:
        sys.exit(f"the command line needs the extra `lab` ({error}): pip install 'selective-backprop[lab]'")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.exit("the command line trains in one process: start it without torchrun")
    app()


if __name__ == "__main__":
    main()
