"""`python -m fedbeyond` is the command line."""

from .cli import main

main()
