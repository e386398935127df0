"""The subcommands of heddle, one module each."""
