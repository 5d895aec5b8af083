"""`python -m mammoth_sbs` is `mammoth-sbs`."""

from mammoth_sbs.commands import main

main()
