"""`python -m fedbeyond` is the command line."""

from .cli.main import main

main()
