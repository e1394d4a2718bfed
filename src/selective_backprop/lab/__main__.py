"""python -m selective_backprop.lab, or the command selective-backprop."""

import sys

from selective_backprop.lab.launch import joined


def main() -> None:
    """Run the command line, or say what to install for it."""
    try:
        from selective_backprop.lab.cli import app
    except ImportError as error:
        sys.exit(f"the command line needs the extra lab ({error}): pip install 'selective-backprop[lab]'")
    with joined():
        app()


if __name__ == "__main__":
    main()
