"""The `softkv` command: a thin skin over the library, one file per command group. Installed as `softkv_cli`."""
