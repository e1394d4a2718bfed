"""Entry point of `python -m selective_backprop.lab` and of the command selective-backprop."""

import sys

from selective_backprop.lab.runs.launch import alone, joined, leave


def main() -> None:
    """Run the command line, or say what to install for it."""
    try:
        from selective_backprop.lab.cli import app
    except ImportError as error:
        sys.exit(f"the command line needs the extra `lab` ({error}): pip install 'selective-backprop[lab]'")
    try:
        with joined():
            app()
    except SystemExit as end:
        if not end.code and not alone():
            leave()
        raise


if __name__ == "__main__":
    main()
