"""The subcommands of `loadgen`: one module each."""
