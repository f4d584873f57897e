"""The command `sexpgpu`."""
