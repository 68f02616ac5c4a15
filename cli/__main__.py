"""The command as `python -m softkv_cli`."""

from .main import main

main()
